"""Every wrong twin of a rule of requests is caught by its check, which the package passes as a test elsewhere."""

import pytest

from tests.requests.mutants import MUTANTS


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_is_caught(mutant, monkeypatch):
    mutant.apply(monkeypatch)
    with pytest.raises(AssertionError):
        mutant.check()


def test_there_are_enough_and_each_has_its_name():
    assert len(MUTANTS) >= 8
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    numbers = {mutant.after.split(":")[0] for mutant in MUTANTS}
    assert {"T27", "T36", "T37", "T38", "T39", "T40", "T50", "T52", "T56", "T57"} <= numbers
