"""Every wrong twin of `verify_rejection`, `verify_block` and `target_probs` is caught by its check."""

import sys
from pathlib import Path

import pytest

from tests.kernels.listed_mutants import LISTED_MUTANTS
from tests.kernels.mutants import mutated
from tests.kernels.ratio_mutants import RATIO_MUTANTS
from tests.kernels.settling_mutants import SETTLING_MUTANTS

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's own arithmetic on -inf


ALL = RATIO_MUTANTS | SETTLING_MUTANTS | LISTED_MUTANTS


@pytest.mark.parametrize("name", ALL)
def test_a_mutant_is_caught(name: str, tmp_path: Path) -> None:
    package = f"wrong_ratio_{list(ALL).index(name)}"
    try:
        wrong = mutated(ALL[name], tmp_path, package)
        with pytest.raises(AssertionError):
            ALL[name].check(wrong)
    finally:
        for module in [module for module in sys.modules if module.split(".")[0] == package]:
            del sys.modules[module]
