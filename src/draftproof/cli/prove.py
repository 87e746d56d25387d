"""`draftproof prove`: the verifiers' output laws by enumeration, and the mutants that it must catch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from draftproof.cli.failures import FAILED
from draftproof.cli.loading import versions
from draftproof.cli.output import counted_progress, new_table, note, print_document, print_table, write
from draftproof.cli.verb import verb
from draftproof.errors import ParameterError

EXAMPLES = (
    "draftproof prove",
    "draftproof prove --quick",
    "draftproof prove --mutants",
    "draftproof prove --json > proof.json",
)
Records = list[dict[str, Any]]
_LONGEST_FRACTION = 24


@verb("prove", examples=EXAMPLES)
@click.option("--mutants", is_flag=True, help="Instead, run every mutant: wrong twins of the rules, named after bugs.")
@click.option("--quick", is_flag=True, help="A subset that takes seconds; all of it takes up to 3 minutes on 2 cores.")
def prove(**given: Any) -> None:
    """Prove the verifiers exact, by enumeration.

    The verifiers' own code runs in rational arithmetic, over every random path.
    Each row is a verifier, a law of drafts and a topology. max_error is the largest difference between the output's
    law and the target's in the probability of one sequence: an exact fraction, which must be 0. Under a replay
    verifier the tokens must also be plain decoding's on every path. Exit code 1 if a row is not exact.

    With --mutants, each row is a wrong rule; total_variation is how far its law is from the target's. Exit code 1 if
    one is not caught.
    """
    if given["mutants"] and given["quick"]:
        raise ParameterError("quick", True, "left out with --mutants", "all mutants take a few seconds")
    if given["mutants"]:
        _mutants(as_json=given["json"])
    else:
        _proof(quick=given["quick"], as_json=given["json"])


def _proof(*, quick: bool, as_json: bool) -> None:
    from draftproof.verify.prove import prove as run

    with counted_progress("proving") as advance:
        records = [record.as_dict() for record in run(quick=quick, progress=advance)]
    failed = [record for record in records if not record["exact"]]
    if as_json:
        document = {"combinations": records, "num_combinations": len(records), "all_exact": not failed}
        print_document({**document, "quick": quick, "versions": versions()})
    else:
        table = new_table("verifier", "guarantee", "draft's law", "topology", "passes", "instances", "paths",
                          "max_error", "exact")  # fmt: skip
        names = ("verifier", "guarantee", "law", "topology", "passes", "instances", "paths", "max_error")
        for record in records:
            table.add_row(*(str(record[name]) for name in names), _yes_or_no(record["exact"]))
        print_table(table)
        num_paths = sum(record["paths"] for record in records)
        write(f"{len(records) - len(failed)} of {len(records)} combinations are exact, over {num_paths:,} paths\n")
    _end(failed, lambda record: f"{record['verifier']}, {record['law']}, {record['topology']} is not exact")


def _mutants(*, as_json: bool) -> None:
    from draftproof.verify.mutants import run_mutants

    with counted_progress("running mutants") as advance:
        records = [record.as_dict() for record in run_mutants(progress=advance)]
    survivors = [record for record in records if not record["caught"]]
    if as_json:
        document = {"mutants": records, "num_mutants": len(records), "all_caught": not survivors}
        print_document({**document, "versions": versions()})
    else:
        table = new_table("mutant", "after", "total_variation", "caught")
        for record in records:
            fraction, number = record["total_variation"], record["total_variation_float"]
            shown = fraction if len(fraction) <= _LONGEST_FRACTION else f"about {number:.6f}"
            table.add_row(record["mutant"], record["after"], shown, _yes_or_no(record["caught"]))
        print_table(table)
        write(f"{len(records) - len(survivors)} of {len(records)} mutants are caught\n")
    _end(survivors, lambda record: f"the mutant {record['mutant']} is not caught")


def _end(failures: Records, describe: Callable[[dict[str, Any]], str]) -> None:
    for record in failures:
        note(f"error: {describe(record)}")
    if failures:
        raise click.exceptions.Exit(FAILED)


def _yes_or_no(holds: bool) -> str:
    return "yes" if holds else "NO"
