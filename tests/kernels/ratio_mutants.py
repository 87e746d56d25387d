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
RANKS = "device/ranks.py"
EDGES = "device/edges.py"
BEFORE = "device/before.py"

RATIO_MUTANTS = {
    "accepts by the target's probability alone": Mutant(
        MEASURE, "needs = u * q", "needs = u", ratio_checks.check_short
    ),
    "replaces from the target's law": Mutant(
        RATIO, "tl.maximum(p - probs_of_loaded(node, ids, loaded, LAW), 0.0)", "p", ratio_checks.check_short
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
        STOP, "tl.minimum(next_most, most * next_ratio)", "ratio * next_ratio", ratio_checks.check_law_without_filters
    ),
    "block's residual without the prefix' mass": Mutant(
        STATE, "gain = share / tl.load(rows[6] + row_index)", "gain = 1.0 / tl.load(rows[6] + row_index)",
        ratio_checks.check_short,
    ),
    "block's tests without 1 - P": Mutant(
        STOP, "coin * (rest + 1 - masses) < rest", "coin * rest < rest", ratio_checks.check_short
    ),
    "drops the best contenders before they are scored": Mutant(
        RATIO, "- 32.0 - 0.0875", "- 20.0 - 0.0875", ratio_checks.check_contenders
    ),
    "a winner before all programs have raced": Mutant(
        RESIDUAL, "ended == num_splits - 1", "ended == 0", ratio_checks.check_splits
    ),
    "a race that leaves out its last tiles": Mutant(
        RATIO, "tile_ahead(row, tile + 1, (tile + 1 < last) &", "tile_ahead(row, tile + 1, (tile < 0) &",
        ratio_checks.check_splits,
    ),
    "contenders forgotten beside a better one": Mutant(
        RATIO, "tl.maximum(tl.maximum(left, other_left), tl.minimum(bound, other))", "tl.maximum(left, other_left)",
        ratio_checks.check_contenders,
    ),
    "a dropped token accepted": Mutant(
        STOP, "tl.where(kept, weights, 0.0)", "tl.where(kept, weights, weights)", ratio_checks.check_filters
    ),
    "the filters' mass taken for the row's": Mutant(
        STOP, "mask=inside, other=1.0)\n\n\n@triton.jit\ndef stop_of_rejection",
        "mask=inside, other=1.0) * 1.3\n\n\n@triton.jit\ndef stop_of_rejection", ratio_checks.check_filters,
    ),
    "the last kept token dropped": Mutant(RATIO, "law[3] + 1)", "law[3])", ratio_checks.check_filters),
    "top-p's mass without what lies above its interval": Mutant(
        "device/law.py", "mass, enough = above_units.to(", "mass, enough = (0 * above_units).to(",
        probs_checks.check_parts,
    ),
    "a draft's last row not read": Mutant(
        "ratio/device/read.py", "if request == following:", "if (request == following) & (local < num_nodes - 1):",
        ratio_checks.check_short,
    ),
    "an interval without its upper end": Mutant(
        EDGES, "tl.min(tl.where(reached, tl.load(edges + MOST), edge), 0)", "tl.load(edges + MOST)",
        probs_checks.check_parts,
    ),
    "edges that all stand at the likely end": Mutant(
        RANKS, "FAR, NEAR) * share", "0.0, 0.0) * share", probs_checks.check_sums
    ),
    "edges by ranks in the row, not in its sample": Mutant(
        RANKS, "FAR, NEAR) * share", "FAR, NEAR) * 1.0", probs_checks.check_sums
    ),
    "a sample's mass taken for the row's": Mutant(
        RANKS, "wanted = spare.to(tl.float32) * share", "wanted = spare.to(tl.float32)", probs_checks.check_sums
    ),
    "one of eight places listed for all": Mutant(
        EDGES, "lane * 8 + (index & 7)", "lane * 8 + 0 * index", probs_checks.check_parts
    ),
    "the last program's masses taken for the row's": Mutant(
        EDGES, 'tl.atomic_add(sums + 2, tl.sum(m2, 0), sem="relaxed")', "tl.store(sums + 2, tl.sum(m2, 0))",
        probs_checks.check_sums,
    ),
    "a program's last stretch left to the next": Mutant(
        "device/bound_kernels.py", "tl.minimum(first + share, stretches)", "tl.minimum(first + share, stretches) - 1",
        probs_checks.check_sums,
    ),
    "a list that is too long taken for all of it": Mutant(
        "device/law.py", "if listed >= ROOM:", "if listed < 0:", probs_checks.check_samples
    ),
    "what lies above a bucket taken off twice": Mutant(
        TOP_P, "goal -= before", "goal -= 2 * before", probs_checks.check_samples
    ),
    "a bucket's first key passed over": Mutant(
        "device/buckets.py", "low, rise) >= bucket:", "low, rise) > bucket:", probs_checks.check_many_ties
    ),
    "a tie too many kept": Mutant(
        "device/ties.py", "if count >= num_kept:", "if count > num_kept:", probs_checks.check_many_ties
    ),
    "a special token counted among those beside it": Mutant(
        "device/ties.py", "tl.atomic_add(counts + ids // TILE, 1", "tl.atomic_add(counts + 0 * ids, 1",
        probs_checks.check_many_ties,
    ),
    "tied tokens before the last tile forgotten": Mutant(
        "device/ties.py", "count = tl.zeros((), tl.int32) + before", "count = tl.zeros((), tl.int32)",
        probs_checks.check_many_ties,
    ),
    "ties below 0 all kept": Mutant(
        "device/boundary.py", "((key >> 31) & ((1 << KEY_SHIFT) - 1))", "0", probs_checks.check_negative_ties
    ),
    "a third of the ids passed over": Mutant(
        TOP_P, "tl.where(in2, id1 + 1,", "tl.where(in2, id2 + 1,", probs_checks.check_parts
    ),
    "the lowest of some ids taken for the last": Mutant(
        TOP_P, "elif k == up_to:", "elif k == up_to - 1:", probs_checks.check_parts
    ),
    "all tied tokens kept": Mutant(TOP_P, "if num_kept < num_tied:", "if num_kept < 0:", probs_checks.check_parts),
    "prefixes taken for sure that only may be": Mutant(
        "device/wanted.py", "kept & (node < end) & (total >= risen)", "kept & (node < end)",
        ratio_checks.check_sure_prefixes,
    ),
    "unsure tokens taken for kept in a prefix": Mutant(
        "device/wanted.py", "tl.where(inside, LOST, 0.0)", "tl.where(inside, 0.0, 0.0)",
        ratio_checks.check_sure_prefixes,
    ),
    "a token at top-k's edge rejected": Mutant(
        MEASURE, "if z < kth_tile_max(", "if z <= kth_tile_max(", ratio_checks.check_top_k_edge
    ),
    "a residual's mass taken for the prefix before": Mutant(
        STOP, "residual_masses[2] + place, first + node,", "residual_masses[2] + place, first + node - 1,",
        ratio_checks.check_law_without_filters,
    ),
    "prefixes that could pass left out": Mutant(
        "device/wanted.py", "most = tl.exp2(total - risen) * 1.0001", "most = tl.exp2(total - risen) * 0.5",
        ratio_checks.check_brackets,
    ),
    "equal logits of later tiles counted before a drafted token": Mutant(
        BEFORE, "tl.where(tile > token[2] // TILE, token[1], token[0])", "token[0]",
        ratio_checks.check_kept_before_bounds,
    ),
    "equal logits of earlier tiles not counted before a drafted token": Mutant(
        BEFORE, "& above(reach, tile, z, own)", "& (reach > z)", ratio_checks.check_kept_before_bounds
    ),
    "a drafted token's own tile counted twice": Mutant(
        BEFORE, "(tile != own) & ", "", ratio_checks.check_kept_before_bounds
    ),
    "equal logits beside a drafted token not counted": Mutant(
        BEFORE, "above(beside, ids, z, token_id)", "(beside > z)", ratio_checks.check_kept_before_bounds
    ),
    "a token weighed that is known to be dropped": Mutant(
        STOP, " & (states != REJECT)", "", ratio_checks.check_dropped_drafts
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
