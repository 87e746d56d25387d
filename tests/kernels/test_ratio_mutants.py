"""Every wrong twin of `verify_rejection`, `verify_block` and `target_probs` is caught by its check."""

import sys
from pathlib import Path

import pytest

from tests.kernels.mutants import mutated
from tests.kernels.ratio_mutants import RATIO_MUTANTS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf


@pytest.mark.parametrize("name", RATIO_MUTANTS)
def test_a_mutant_is_caught(name: str, tmp_path: Path) -> None:
    package = f"wrong_ratio_{list(RATIO_MUTANTS).index(name)}"
    try:
        wrong = mutated(RATIO_MUTANTS[name], tmp_path, package)
        with pytest.raises(AssertionError):
            RATIO_MUTANTS[name].check(wrong)
    finally:
        for module in [module for module in sys.modules if module.split(".")[0] == package]:
            del sys.modules[module]
