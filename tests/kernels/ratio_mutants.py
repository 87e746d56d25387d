"""Wrong twins of `verify_rejection`, `verify_block` and `target_probs`, and the check that must catch each."""

from tests.kernels import probs_checks, ratio_checks, ratio_fault_checks
from tests.kernels.mutants import Mutant

RATIO = "device/ratio.py"
STATE = "ratio/device/state.py"
MEASURE = "ratio/device/measure.py"
DRAFT_LAW = "ratio/device/draft_law.py"
STOP = "ratio/device/stop.py"
RESIDUAL = "ratio/device/residual.py"
TOP_P = "device/top_p.py"
BOUNDS = "device/bound_kernels.py"

RATIO_MUTANTS = {
    "accepts by the target's probability alone": Mutant(
        MEASURE, "needs = u * q", "needs = u", ratio_checks.check_short
    ),
    "replaces from the target's law": Mutant(
        RATIO, "rest = tl.maximum(p - draft_probs(node, ids, LAW, STEPS), 0.0)", "rest = p", ratio_checks.check_short
    ),
    "one coin for all nodes": Mutant(MEASURE, "local + COIN", "local * 0 + COIN", ratio_checks.check_short),
    "a residual drawn with the bonus' field": Mutant(
        STATE, "RESIDUAL = tl.constexpr(18 << 24)", "RESIDUAL = tl.constexpr(19 << 24)", ratio_checks.check_short
    ),
    "a bonus drawn with the target's field": Mutant(
        STATE, "BONUS = tl.constexpr(19 << 24)", "BONUS = tl.constexpr(0)", ratio_checks.check_short
    ),
    "noise of the row's position": Mutant(
        STATE,
        "start = tl.load(row_params[1] + first)",
        "start = tl.load(row_params[1] + row_index)",
        ratio_checks.check_short,
    ),
    "prefix masses above 1": Mutant(
        STOP,
        "prefix = tl.where(mass >= draft_prob, 1.0, mass / draft_prob)",
        "prefix = mass / draft_prob",
        ratio_checks.check_law_without_filters,
    ),
    "block's residual without the prefix' mass": Mutant(
        STATE, "gain = share / tl.load(rows[6] + row_index)", "gain = 1.0 / tl.load(rows[6] + row_index)",
        ratio_checks.check_short,
    ),
    "block's tests without 1 - P": Mutant(
        STOP, "coin * (rest + 1 - masses) < rest", "coin * rest < rest", ratio_checks.check_short
    ),
    "drops the best contenders before they are scored": Mutant(
        RATIO, "second - 32.0 - 0.0875", "second - 20.0 - 0.0875", ratio_checks.check_equal_laws
    ),
    "a dropped token accepted": Mutant(
        STOP, "tl.where(kept, weights, 0.0)", "tl.where(kept, weights, weights)", ratio_checks.check_filters
    ),
    "the filters' mass taken for the row's": Mutant(
        STOP, "mask=inside, other=1.0)\n\n\n@triton.jit\ndef stop_of_rejection",
        "mask=inside, other=1.0) * 1.3\n\n\n@triton.jit\ndef stop_of_rejection", ratio_checks.check_filters,
    ),
    "the last kept token dropped": Mutant(RATIO, "law[3] + 1)", "law[3])", ratio_checks.check_filters),
    "top-p's mass without what lies above its bracket": Mutant(
        "device/law.py", "mass += above_mass", "mass += 0.0", probs_checks.check_target_probs
    ),
    "a part's tokens listed over another's": Mutant(
        TOP_P, 'tl.atomic_add(count + 0 * ids, 1, mask=hit, sem="relaxed")',
        '0 * tl.atomic_add(count + 0 * ids, 1, mask=hit, sem="relaxed")', probs_checks.check_parts,
    ),
    "the last part's masses taken for the row's": Mutant(
        TOP_P, 'tl.atomic_add(out + index, masses, sem="relaxed")', "tl.store(out + index, masses)",
        probs_checks.check_parts,
    ),
    "above the highest pivot the mass at it": Mutant(
        TOP_P, "tl.where(quarter == PIVOTS, above_mass, mass)", "mass", probs_checks.check_samples
    ),
    "ties below 0 all kept": Mutant(
        "device/boundary.py", "((key >> 31) & ((1 << KEY_SHIFT) - 1))", "0", probs_checks.check_negative_ties
    ),
    "a list that is too short taken for whole": Mutant(
        TOP_P, "(count <= ROOM) & (tl.sum(units, 0) >= goal)", "tl.sum(units, 0) >= goal", probs_checks.check_samples
    ),
    "a quarter of the ids passed over": Mutant(
        TOP_P, "tl.where(in2, id1 + 1,", "tl.where(in2, id2 + 1,", probs_checks.check_parts
    ),
    "all tied tokens kept": Mutant(TOP_P, "if num_kept < num_tied:", "if num_kept < 0:", probs_checks.check_parts),
    "a token in the bracket taken for kept": Mutant(
        BOUNDS, "accepted = (z >= high) & (needs", "accepted = (z >= low) & (needs", ratio_checks.check_brackets
    ),
    "a mass without the bracket's last token": Mutant(
        BOUNDS, "most = tl.minimum(total, needed + tl.exp2(tl.fma(high, scale, -top)).to(tl.float64))",
        "most = tl.minimum(total, needed)", ratio_checks.check_last_kept_mass,
    ),
    "a dropped token's weight in the prefix": Mutant(
        BOUNDS, "tl.store(nodes[0] + row_index, weights, mask=dropped)",
        "tl.store(nodes[0] + row_index, weights, mask=dropped & (z > low))", ratio_checks.check_sparse,
    ),
    "prefixes that could pass left out": Mutant(
        "device/wanted.py", "most = tl.exp2(total - risen) * 1.0001", "most = tl.exp2(total - risen) * 0.5",
        ratio_checks.check_brackets,
    ),
    "a mass that top-p's last token isn't part of": Mutant(
        "ratio/device/measure.py", "tl.minimum(total, needed + own)", "tl.minimum(total, needed)",
        ratio_checks.check_last_kept_mass,
    ),
    "a drafted token's mask not read": Mutant(
        RATIO, "has_bit(row[1], token_id, inside)", "inside", ratio_checks.check_likely_drafts
    ),
    "a drafted token's logit before its penalty": Mutant(
        RATIO, "~is_special(row, token_id, inside)", "inside", ratio_checks.check_likely_drafts
    ),
    "greedy rows without their bound": Mutant(
        "device/law.py", "z_bound = tl.zeros((), tl.float32) + largest", "z_bound += 0.0 * largest",
        ratio_checks.check_greedy_beside_a_hint,
    ),
    "nothing drawn where a residual is empty": Mutant(
        RESIDUAL,
        'draws_target = tl.maximum(bonus, (best == -float("inf")).to(tl.int32))',
        "draws_target = bonus",
        ratio_fault_checks.check_empty_residual,
    ),
    "a token that its law can't have drawn": Mutant(
        DRAFT_LAW, "healthy = healthy & (q > 0)", "healthy = healthy & (q >= 0)", ratio_fault_checks.check_faults
    ),
    "probabilities that are not normalised": Mutant(
        DRAFT_LAW, "(mass > 0.999) & (mass < 1.001)", "(mass > 0.5) & (mass < 1.5)",
        ratio_fault_checks.check_bad_probabilities,
    ),
    "negative probabilities": Mutant(
        DRAFT_LAW, "tl.min(lowest, 0) >= 0", "tl.min(lowest, 0) >= -1", ratio_fault_checks.check_bad_probabilities
    ),
    "a law over the row's whole mass": Mutant(
        "probs/triton.py", "tl.load(rows[6] + row_index)", "tl.load(rows[5] + row_index)",
        probs_checks.check_target_probs,
    ),
    "a bad row written as a law": Mutant(
        "probs/triton.py", 'tl.full(z.shape, float("nan"), tl.float32)', "tl.full(z.shape, 0.0, tl.float32)",
        probs_checks.check_target_probs_of_bad_rows,
    ),
}  # fmt: skip
