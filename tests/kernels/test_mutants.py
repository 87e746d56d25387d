"""Every wrong twin of the kernels is caught by its check, and the kernels pass all checks."""

import sys

import pytest

from draftproof import kernels
from tests.kernels import change_checks, checks
from tests.kernels.mutants import MUTANTS, mutated

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf

CHECKS = [check for name, check in {**vars(checks), **vars(change_checks)}.items() if name.startswith("check_")]


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
