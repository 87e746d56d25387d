"""Every mutant is caught, and by its own fault: the right rule on the same instance is exact."""

import re
from fractions import Fraction

import pytest

from draftproof.verify.mutants import MutantRecord, all_mutants, run_mutants


@pytest.fixture(scope="module")
def records() -> list[MutantRecord]:
    return list(run_mutants())


def test_all_are_caught(records: list[MutantRecord]) -> None:
    assert [record for record in records if not record.caught] == []
    assert all(Fraction(record.total_variation) > 0 and record.control == "0" for record in records)
    assert all(float(Fraction(record.total_variation)) == record.total_variation_float for record in records)


def test_there_are_enough_and_each_has_its_name(records: list[MutantRecord]) -> None:
    assert len(records) >= 70
    assert len({record.mutant for record in records}) == len(records)
    assert all(record.after for record in records)


def test_the_regression_list_is_covered(records: list[MutantRecord]) -> None:
    """T10, T13, T16, T19's engine half, T20d and T20e are rules that must pass, or are tested elsewhere."""
    numbers = {match for record in records for match in re.findall(r"^T\d+[a-z]?", record.after)}
    wanted = {
        f"T{number:02d}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 14, 15, 17, 18, 19, 22, 23, 25, 26, 30)
    }
    assert numbers >= wanted | {"T20a", "T20b", "T20c", "T20f", "T20g"}


def test_the_issues_own_mutants_are_there() -> None:
    names = {mutant.name for mutant in all_mutants()}
    assert names >= {
        "coins persist under block",
        "drafts persist under block",
        "coins repeat in each pass",
        "drafts repeat in each pass",
        "length policy that read a discarded draft",
        "chat turn whose positions restart at 0",
        "keyed noise redrawn in each pass under a noise-aware draft",
        "bonus token appended after a rejection",
        "accept coin reused for the residual",
        "last test uncapped",
        "subtree accepted by the uncapped product",
        "second subtree's law is the first one's, traversal",
        "second sibling's law is the first one's, recursive",
        "longest of several verified paths",
        "every one of k siblings tested at p/q",
        "ranked siblings left in the drawn one's law",
    }


def test_progress_is_reported() -> None:
    calls: list[tuple[int, int]] = []
    records = run_mutants(lambda done, total: calls.append((done, total)))
    next(records), next(records)
    assert calls == [(1, len(all_mutants()))]
