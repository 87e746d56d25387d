"""Every mutant of the engine is caught by its scenario, and by its own fault: without it the scenario holds."""

import pytest

from tests.engine.scheduler_mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, monkeypatch):
    make_wrong, scenario = MUTANTS[name]
    make_wrong(monkeypatch)
    try:
        holds = scenario()
    except Exception:
        holds = False
    assert not holds


@pytest.mark.parametrize("scenario", dict.fromkeys(scenario for _, scenario in MUTANTS.values()))
def test_the_rule_holds_without_it(scenario):
    assert scenario()
