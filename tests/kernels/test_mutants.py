"""Every wrong twin of the kernels is caught by its check, and the kernels pass all checks."""

import sys

import pytest

from draftproof import kernels
from tests.kernels import change_checks, checks, list_checks, walk_checks
from tests.kernels.list_mutants import LIST_MUTANTS
from tests.kernels.mutants import MUTANTS as OTHERS
from tests.kernels.mutants import mutated
from tests.kernels.walk_mutants import WALK_MUTANTS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

MUTANTS = {**OTHERS, **LIST_MUTANTS, **WALK_MUTANTS}
SUBJECTS = {**vars(checks), **vars(change_checks), **vars(walk_checks), **vars(list_checks)}
CHECKS = [check for name, check in SUBJECTS.items() if name.startswith("check_")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_kernels_pass(check):
    check(kernels)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, tmp_path):
    package = f"wrong_kernels_{list(MUTANTS).index(name)}"
    try:
        wrong = mutated(MUTANTS[name], tmp_path, package)
        with pytest.raises(AssertionError):
            MUTANTS[name].check(wrong)
    finally:
        for module in [module for module in sys.modules if module.split(".")[0] == package]:
            del sys.modules[module]
