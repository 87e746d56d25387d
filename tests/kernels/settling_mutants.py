"""Wrong twins of `verify_rejection` under top-p alone, and the check that must catch each."""

from tests.kernels import ratio_checks, settling_checks
from tests.kernels.mutants import Mutant

BRACKETS = "device/brackets.py"
CONTENDERS = "device/contenders.py"
BEFORE = "device/before.py"
DECIDE = "ratio/device/decide.py"
FEW = "ratio/device/few.py"
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
        DECIDE, "dropped = mass >= needed", "dropped = mass >= 2.0 * needed", settling_checks.check_doubtful_winners
    ),
    "a kept winner dropped": Mutant(
        DECIDE, "dropped = mass >= needed", "dropped = mass >= 0.5 * needed", settling_checks.check_doubtful_winners
    ),
    "better tokens before a dropped winner passed over": Mutant(
        DECIDE, "tl.where(before & (ids != winner), scores,", "tl.where(before & (ids < 0), scores,",
        settling_checks.check_one_likely_token,
    ),
    "contenders that no program left passed over": Mutant(
        DECIDE, "unseen = tl.max(hidden, 0)", "unseen = tl.min(hidden, 0) - 1e30",
        settling_checks.check_hidden_contenders,
    ),
    "every other token left out of a list": Mutant(
        FEW, "bit = 1 << tl.arange(0, 8)", "bit = (1 << tl.arange(0, 8)) & 85", settling_checks.check_short_rows
    ),
    "a list without room for all taken for whole": Mutant(
        FEW, "tl.where(num_found <= LIST, num_found, 0)", "tl.minimum(num_found, LIST)",
        settling_checks.check_one_likely_token,
    ),
    "the end of a list's row above what was raced": Mutant(
        DECIDE, "shape, low, list_z", "shape, tl.maximum(low, high - 0.01), list_z", settling_checks.check_peaked_rows
    ),
    "a list raced without what top-p drops": Mutant(
        DECIDE, "noise, shape[2], exact, node, bonus, LAW", "noise, shape[2], law, node, bonus, LAW",
        settling_checks.check_short_rows,
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
        UNSURE, "needed + last)", "needed + 0.0 * last)", ratio_checks.check_last_kept_mass
    ),
    "an unsure test's exact mass left out": Mutant(
        UNSURE, "(needs * mass < own)", "(needs * top_p * total < own)", ratio_checks.check_last_kept_mass
    ),
    "a likely token taken for the last one that is kept": Mutant(
        UNSURE, "(up_to >= needed * (1.0 + NEAR_MASS))", "(up_to >= 0.7 * needed)", settling_checks.check_likely_drafts
    ),
    "what ranks before a last token left out of the kept mass": Mutant(
        UNSURE, "tl.where(ends, up_to, tl.minimum", "tl.where(ends, own, tl.minimum",
        settling_checks.check_likely_drafts,
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
