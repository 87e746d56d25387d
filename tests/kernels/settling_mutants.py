"""Wrong twins of `verify_rejection` under top-p alone, and the check that must catch each."""

from tests.kernels import ratio_checks, settling_checks
from tests.kernels.mutants import Mutant

BRACKETS = "device/brackets.py"
CONTENDERS = "device/contenders.py"
BEFORE = "device/before.py"
DECIDE = "ratio/device/decide.py"
UNSURE = "ratio/device/unsure.py"
SETTLED = "ratio/device/bracketed.py"

SETTLING_MUTANTS = {
    "a winner between two edges taken for kept": Mutant(
        DECIDE, "if (unsure == 0) & (own_z < high)", "if (unsure == 0) & (own_z < low)",
        settling_checks.check_flat_rows,
    ),
    "a likely winner taken for kept": Mutant(
        DECIDE, "(total - own >= needed * 0.99999)", "(total - own >= needed * 1.5)", settling_checks.check_flat_rows
    ),
    "a dropped winner kept": Mutant(
        DECIDE, "if mass >= needed:", "if mass >= 2.0 * needed:", settling_checks.check_doubtful_winners
    ),
    "a kept winner dropped": Mutant(
        DECIDE, "if mass >= needed:", "if mass >= 0.5 * needed:", settling_checks.check_doubtful_winners
    ),
    "better tokens before a dropped winner passed over": Mutant(
        DECIDE, "tl.where(before & (ids != winner), scores,", "tl.where(before & (ids < 0), scores,",
        settling_checks.check_one_likely_token,
    ),
    "contenders that no program left passed over": Mutant(
        DECIDE, "unseen = tl.max(hidden, 0)", "unseen = tl.min(hidden, 0) - 1e30",
        settling_checks.check_hidden_contenders,
    ),
    "a row that ends below its lowest edge": Mutant(
        DECIDE, "unsure = unsure | (asked & (law[2] > low))", "unsure = unsure | (asked & (law[2] < low))",
        settling_checks.check_misled_edges,
    ),
    "a kept mass taken for what top-p wants": Mutant(
        DECIDE, "rest = 1.0 - slope * share.to(tl.float32)", "rest = 1.0 - 0.0 * slope * share.to(tl.float32)",
        settling_checks.check_few_tokens,
    ),
    "weights above edges counted twice": Mutant(
        CONTENDERS, "(tl.sum(tl.where(z >= edge, weights, 0.0), 1).to(tl.float64) * WHOLE)",
        "(tl.sum(tl.where(z >= edge, weights, 0.0), 1).to(tl.float64) * (2.0 * WHOLE))",
        settling_checks.check_wide_rows,
    ),
    "the highest edge taken for the lower one": Mutant(
        DECIDE, "tl.maximum(low, edges[0][edge])", "tl.maximum(low, edges[0][EDGES - 1])",
        settling_checks.check_wide_rows,
    ),
    "an end below what tiles tell": Mutant(
        BRACKETS, "(needed * (1.0 - SURE))", "(needed * (1.7 - SURE))", settling_checks.check_likely_tile
    ),
    "an end above what tiles tell": Mutant(
        BRACKETS, "(needed * (1.0 + SURE))", "(needed * (0.7 + SURE))", settling_checks.check_few_tokens
    ),
    "an unsure test decided by the least mass": Mutant(
        UNSURE, "top_p * total + last)", "top_p * total + 0.0 * last)", ratio_checks.check_last_kept_mass
    ),
    "an unsure test's exact mass left out": Mutant(
        UNSURE, "(needs * mass < own)", "(needs * top_p * total < own)", ratio_checks.check_last_kept_mass
    ),
    "the mass that is to be kept without top-p": Mutant(
        UNSURE, "tl.ceil(top_p * total * WHOLE)", "tl.ceil(total * WHOLE)", settling_checks.check_wide_rows
    ),
    "a greedy row's test by its largest logit alone": Mutant(
        "ratio/device/measure.py", "(token_id == id_bound) & (needs * own < own)", "(needs * own < own)",
        settling_checks.check_greedy_ties,
    ),
    "a row without top-p asked for its edges": Mutant(
        SETTLED, "tl.where(asked, 1.0, 0.0)", "tl.where(health(largest) == OK, 1.0, 0.0)",
        settling_checks.check_settled_batch,
    ),
    "a mask left out of the race": Mutant(
        CONTENDERS, "TILE, HAS_ALLOWED, False)  # fmt: skip\n            rest =",
        "TILE, False, False)  # fmt: skip\n            rest =",
        settling_checks.check_settled_masks,
    ),
}  # fmt: skip
