"""Wrong twins of what is decided by where a walk may come, and of searches in lists. As `mutants.py`."""

from tests.kernels import list_checks, walk_checks
from tests.kernels.mutants import Mutant

WALK_MUTANTS = {
    "masses that weren't summed": Mutant(
        "keyed/triton.py", "(first_mass != UNSUMMED)", "(first_mass != 5)",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "rows summed behind a token that misses": Mutant(
        "keyed/triton.py", "likely = (first == drafted) |", "likely = (first >= 0) |",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "no row summed behind another": Mutant(
        "keyed/triton.py", "(likely | (above == 0))", "(above == 0)",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "rows that are never summed": Mutant(
        "keyed/triton.py", "tl.load(scratch[10]) * PARTS", "tl.load(scratch[10]) * 0",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "last bits that aren't searched": Mutant(
        "device/boundary.py", "tl.max(tl.where(inside, key, -2147483648), 0)", "tl.min(tl.where(inside, key, high), 0)",
        list_checks.check_logits_that_differ_in_their_last_bits,
    ),
}  # fmt: skip
