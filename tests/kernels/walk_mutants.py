"""Wrong twins of what is decided by where a walk may come. As `mutants.py`."""

from tests.kernels import checks, walk_checks
from tests.kernels.mutants import Mutant

WALK_MUTANTS = {
    "masses that weren't summed": Mutant(
        "keyed/device/walk.py", "(num_summed > 0)", "(num_summed >= 0)",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "a row's last part left out": Mutant(
        "device/sums.py", "tl.cdiv(num_tiles, TILES // PARTS)", "num_tiles // (TILES // PARTS)",
        checks.check_top_p_of_many_rows,
    ),
    "rows summed behind a token that misses": Mutant(
        "keyed/device/sum.py", "likely = (first == drafted) |", "likely = (first >= 0) |",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "no row summed behind another": Mutant(
        "keyed/device/sum.py", "(likely | (above == 0))", "(above == 0)",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
    "rows that are never summed": Mutant(
        "keyed/device/sum.py", "tl.load(scratch[10]) * num_parts", "tl.load(scratch[10]) * 0",
        walk_checks.check_rows_that_no_walk_was_likely_to_come_to,
    ),
}  # fmt: skip
