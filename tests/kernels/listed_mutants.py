"""Wrong twins of `verify_rejection` under top-k and min-p, and the check that must catch each."""

from tests.kernels import listed_checks
from tests.kernels.mutants import Mutant

LISTED = "ratio/device/listed.py"
BOUNDED = "ratio/device/bounded.py"

LISTED_MUTANTS = {
    "a row raced by the noise of the first": Mutant(
        LISTED, "tl.where(bonus > 0, BONUS, local + RESIDUAL)", "tl.where(bonus > 0, BONUS, 0 * local + RESIDUAL)",
        listed_checks.check_listed_rows,
    ),
    "a bonus raced by a residual's noise": Mutant(
        LISTED, "tl.where(bonus > 0, BONUS, local + RESIDUAL)", "local + RESIDUAL", listed_checks.check_listed_bonuses
    ),
    "a listed row's mass left out": Mutant(
        LISTED, "(1.0 / bound[2]).to(tl.float32)", "(0.0 * bound[2] + 1.0).to(tl.float32)",
        listed_checks.check_listed_rows,
    ),
    "a winner of another row": Mutant(
        LISTED, "(position == stop) & (fault == 0), each", "(position == 0) & (fault == 0), each",
        listed_checks.check_listed_rows,
    ),
    "a row that no list holds not raced": Mutant(
        LISTED, "if (fault == 0) & (winner == LEFT):", "if (fault == 0) & (winner < LEFT):",
        listed_checks.check_long_lists,
    ),
    "a race of what no list holds by the noise of the first row": Mutant(
        LISTED, "tl.where(bonus > 0, BONUS, stop + RESIDUAL)", "tl.where(bonus > 0, BONUS, 0 * stop + RESIDUAL)",
        listed_checks.check_long_lists,
    ),
    "a draft's law at another temperature": Mutant(
        BOUNDED, "law_of_draft(tiles, here[5])", "law_of_draft(tiles, 2.0 * here[5])", listed_checks.check_listed_rows
    ),
    "a faulty row's winner emitted": Mutant(
        LISTED, "(position == stop) & (fault == 0), each", "(position == stop), each + (fault != 0) * 100",
        listed_checks.check_listed_faults,
    ),
}  # fmt: skip
