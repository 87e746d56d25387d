"""Wrong twins of the kernels, each one edit of their source, and the check that must catch it.

`mutated` writes a copy of the package of kernels with the edit, under a name of its own.
"""

import importlib
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import draftproof.kernels
from tests.kernels import change_checks, checks, list_checks

HOME = Path(draftproof.kernels.__file__).parent


class Mutant(NamedTuple):
    """In `module`, `right` (found once) becomes `wrong`."""

    module: str
    right: str
    wrong: str
    check: object


MUTANTS = {
    "six rounds of Philox": Mutant(
        "device/noise.py", "tl.static_range(7)", "tl.static_range(6)", checks.check_noise
    ),
    "a key that isn't bumped": Mutant("device/noise.py", "k1 += 0xBB67AE85", "k1 += 0", checks.check_noise),
    "half a seed": Mutant(
        "device/request.py",
        "tl.load(request_params[5] + request)",
        "tl.load(request_params[4] + request)",
        checks.check_noise,
    ),
    "no sample index": Mutant(
        "device/request.py",
        "tl.load(request_params[6] + request)",
        "0 * tl.load(request_params[6] + request)",
        checks.check_noise,
    ),
    "bounds that are too low": Mutant(
        "device/race.py", "reach = bound + SHIFT", "reach = bound + SHIFT - 12.0", checks.check_slots
    ),
    "a tile's second quad of a slot forgotten": Mutant(
        "device/race.py", "tl.maximum(runner, tl.minimum(reach, best))", "tl.minimum(reach, best)", checks.check_slots
    ),
    "a beaten quad forgotten": Mutant(
        "device/race.py", "tl.maximum(runner, tl.minimum(reach, best))", "runner", checks.check_slots
    ),
    "a slot looked at once": Mutant(
        "device/race.py", "range(ats[0], ats[1], QUADS)", "range(ats[0], ats[0] + 1, QUADS)", checks.check_long_split
    ),
    "a quad's less likely tokens forgotten": Mutant(
        "device/race.py", "left = tl.maximum(left, others)", "pass", checks.check_slack
    ),
    "the tile before read again": Mutant(
        "device/read.py", "after = quad + TILE // 4", "after = quad", checks.check_tiles
    ),
    "a quad's first word for its smallest": Mutant(
        "device/read.py",
        "tl.minimum(tl.minimum(k0, k1), tl.minimum(k2, k3))",
        "tl.maximum(tl.maximum(k0, k1), tl.maximum(k2, k3))",
        checks.check_slots,
    ),
    "near ties left to float32": Mutant(
        "device/noise.py", "return NEAR + NEAR_SHARE * tl.abs(best)", "return -1.0 + 0.0 * best", checks.check_near_ties
    ),
    "ties at the k-th place dropped": Mutant(
        "device/boundary.py",
        "alive = alive & (key >= low)",
        "alive = alive & (key > low)",
        list_checks.check_short_lists,
    ),
    "top-p of the whole list after top-k": Mutant(
        "device/boundary.py", "        units = tl.where(alive, units, 0)\n        lowest", "        lowest",
        list_checks.check_short_lists,
    ),
    "groups' maxima rounded down": Mutant(
        "device/rows.py", "tl.where(bits < 0, 0, 0xFFFF)", "0", checks.check_float_groups
    ),
    "one hit of each lane's counted": Mutant(
        "device/passes.py", "num_found + tl.sum(counts, 0)", "num_found + tl.max(counts, 0)", checks.check_top_k_top_p
    ),
    "a sum of lower halves": Mutant(
        "device/boundary.py", "(high.to(tl.int64) << 22) + low", "0 * high + low", list_checks.check_short_lists
    ),
    "fewer tiles than k": Mutant(
        "device/boundary.py", 'tl.where(enough, unordered(low << 16), -float("inf"))', "unordered(low << 16)",
        checks.check_top_k_top_p
    ),
    "the last contender that is kept": Mutant(
        "keyed/device/walk.py", "tl.static_range(2, -1, -1)", "tl.static_range(0, 3)", checks.check_top_p
    ),
    "the second contender's mass for the first's": Mutant(
        "device/sums.py", "tl.full((4,), 1, tl.int64), mass0)", "tl.full((4,), 1, tl.int64), mass1)", checks.check_top_p
    ),
    "the first contender's logit for the second's": Mutant(
        "keyed/device/sum.py", "(tl.load(z + 1), tl.load(drawn[4]", "(tl.load(z), tl.load(drawn[4]",
        checks.check_top_p_of_many_rows,
    ),
    "equal logits of later tiles counted before a contender": Mutant(
        "device/sums.py", "tl.where(end <= id_bound, z_bound,", "tl.where(end >= 0, z_bound,",
        checks.check_top_p_over_many_tiles,
    ),
    "a zero below the other zero": Mutant(
        "device/sums.py", "| (tl.abs(z_bound) < 1e-30)", "", checks.check_top_p_over_many_tiles
    ),
    "min-p before temperature": Mutant(
        "device/boundary.py",
        "return tl.div_rn(z - largest, temperature)",
        "return (z - largest) + 0.0 * temperature",
        checks.check_min_p,
    ),
    "top-p that keeps every winner": Mutant(
        "device/draw.py", "(own > (1.00001 - top_p) * total)", "(own > -1.0)", checks.check_top_p
    ),
    "near ties of masses left to float32": Mutant(
        "keyed/device/walk.py", "tl.abs(mass - wanted * UNITS) <=", "tl.abs(mass - wanted * UNITS) <= -1.0 -",
        checks.check_top_p_near_ties,
    ),
    "a near tie against a float32 total": Mutant(
        "device/draw.py", "needed = top_p * mass", "pass",
        checks.check_top_p_near_ties,
    ),
    "contenders past the third": Mutant(
        "device/draw.py", "unseen = tl.max((thirds >= floor).to(tl.int32), 0)", "unseen = 0", checks.check_top_p
    ),
    "one part of a mass": Mutant(
        "device/sums.py",
        'tl.atomic_add(masses + place, added, mask=added != 0, sem="relaxed")',
        "tl.store(masses + place, added, mask=added != 0)",
        checks.check_top_p,
    ),
    "a NaN passed over": Mutant(
        "device/draw.py", "bad = (largest != largest) |", "bad = (largest != largest) &", checks.check_faults
    ),
    "masks not read": Mutant(
        "device/bits.py",
        "bits = tl.load(row[1] + eighth, mask=inside, other=0).to(tl.int32)",
        "pass",
        change_checks.check_masks,
    ),
    "a token after a miss": Mutant(
        "keyed/device/walk.py",
        "((node == current) & (fault == 0)), tokens, -1)",
        "((node == current + 1) | ((node == current) & (fault == 0))), tokens, -1)",
        checks.check_chain,
    ),
    "a bad row's token": Mutant(
        "keyed/device/walk.py", "(follows != tokens) | (faults != 0) |", "(follows != tokens) |",
        checks.check_chain_fault,
    ),
    "greedy rows raced where there should be none": Mutant(
        "keyed/device/walk.py", "if not is_raced(request, request_params):", "if num_rows < 0:",
        checks.check_greedy_beside_a_hint,
    ),
    "near ties that a walk picks": Mutant(
        "keyed/device/walk.py", "tl.where(inside & healthy & (close + unseen > 0), LEFT, DRAWN)",
        "tl.where(inside & healthy & (close + unseen > 2), LEFT, DRAWN)",
        checks.check_near_ties,
    ),
    "a child of another parent": Mutant(
        "keyed/device/walk.py", "(parents == current) & (drafted == token)", "(drafted == token)", checks.check_tree
    ),
    "siblings counted": Mutant(
        "device/exceptions.py", "((ids == other) & above)", "((ids == other) & (node < num_nodes))",
        change_checks.check_penalties,
    ),
    "negative logits divided": Mutant(
        "device/exceptions.py", "z * repetition)", "z / repetition)", change_checks.check_penalties
    ),
    "presence for the prompt": Mutant(
        "device/exceptions.py",
        "z = z - tl.where(counts > 0, ",
        "z = z - tl.where((seen & 1) + counts > 0, ",
        change_checks.check_penalties,
    ),
    "special tokens raced twice": Mutant(
        "device/bits.py",
        "bits = bits & ~tl.load(row[2] + special_at(eighth), mask=inside, other=0).to(tl.int32)",
        "pass",
        change_checks.check_penalised_favourite,
    ),
    "the special tokens of another lane": Mutant(
        "device/bits.py", "bits = tl.load(words + tile * (SLOTS // 2) + lane,",
        "bits = tl.load(words + tile * (SLOTS // 2) + (lane ^ 1),",
        change_checks.check_changed_lanes
    ),
    "the special tokens of the tile before": Mutant(
        "device/read.py", "special_of_tile(row, tile + 1, ", "special_of_tile(row, tile, ",
        change_checks.check_law_of_changed_lanes
    ),
    "a mask's first group for all": Mutant(
        "device/bits.py", "group * (SLOTS // 8) + lane // 4", "lane // 4", change_checks.check_changed_lanes
    ),
    "a seen token that isn't looked for among the drafts": Mutant(
        "device/exceptions_kernel.py", "4 * counts + 2 * is_drafted + 1", "4 * counts + 1",
        change_checks.check_drafted_of_many
    ),
    "a token listed twice": Mutant(
        "device/exceptions_kernel.py", "there & ((before & bit) == 0)", "there", change_checks.check_listed_once
    ),
    "a draft listed as often as it is drafted": Mutant(
        "device/exceptions_kernel.py", "tl.where(repeats == 0, ids, -1)", "ids", change_checks.check_listed_once
    ),
    "a tile that isn't raced though its tokens are allowed": Mutant(
        "device/read.py", "races & (share != NONE)", "races & (share == ALL)", change_checks.check_masked_tiles
    ),
    "a tile with a word of zeros taken for nothing": Mutant(
        "device/read.py", "tl.max(words, 0) == 0, NONE", "least == 0, NONE",
        change_checks.check_masked_shares
    ),
    "a tile with a word of ones taken for all": Mutant(
        "device/read.py", "least == 0xFFFFFFFF, ALL", "tl.max(words, 0) == 0xFFFFFFFF, ALL",
        change_checks.check_masked_shares
    ),
    "a mask that is applied to nothing": Mutant(
        "device/read.py", "(share != ALL) & (measures", "(share == NONE) & (measures",
        change_checks.check_masked_shares
    ),
    "a quad with one token left taken for none": Mutant(
        "device/read.py", "& 15) != 0, of_quad", "& 15) == 15, of_quad", change_checks.check_masked_quads
    ),
    "a quad whose forbidden token is no number spoils its slot": Mutant(
        "device/race.py", "            best, best_at, left = slots_again(", "            _, _, _ = slots_again(",
        change_checks.check_masked_quads
    ),
    "the words of another tile": Mutant(
        "device/read.py", "coming_words = allowed_words(row, tile + 2,", "coming_words = allowed_words(row, tile + 1,",
        change_checks.check_masked_shares,
    ),
    "a tile that isn't read though its tokens are allowed": Mutant(
        "device/read.py", "tl.where(next_share != NONE, coming_end, 0)", "tl.where(share != NONE, coming_end, 0)",
        change_checks.check_masked_shares,
    ),
    "the mass that banned tokens had": Mutant(
        "device/loose.py", "total = there - whole", "total = there", change_checks.check_top_p_beside_banned_tokens
    ),
    "what the first special tokens weighed": Mutant(
        "device/loose.py", "range(0, num_entries, PART)", "range(0, PART, PART)",
        change_checks.check_top_p_beside_banned_tokens,
    ),
    "no doubt of what is taken away": Mutant(
        "device/loose.py", "tl.constexpr(4e-6)", "tl.constexpr(0.0)", change_checks.check_top_p_beside_banned_tokens
    ),
    "a mass relative to another logit": Mutant(
        "device/loose.py", "return needed * factor,", "return needed,", change_checks.check_top_p_beside_banned_tokens
    ),
    "a near tie against a mass that banned tokens had": Mutant(
        "device/draw.py", "NEAR_MASS * needed) | HAS_SPECIAL", "NEAR_MASS * needed)",
        change_checks.check_top_p_beside_banned_tokens,
    ),
    "as few tokens as are above special tokens' maxima": Mutant(
        "device/boundary.py", "short = (fewer & (min_score == -float(\"inf\"))).to(tl.int32)", "pass",
        change_checks.check_penalised_tiles,
    ),
    "masses relative to a special token's logit": Mutant(
        "device/boundary.py", "        largest = most\n", "        pass\n",
        change_checks.check_penalised_tiles,
    ),
    "min-p relative to a special token's logit": Mutant(
        "device/request.py", "(least == -float(\"inf\"))", "(least < 1.0)", change_checks.check_penalised_tiles
    ),
    "a row whose tokens are all taken out by bias": Mutant(
        "keyed/device/walk.py",
        """HAS_SPECIAL)  # fmt: skip
                        faults = tl.where(node == current, health(largest), faults)""",
        """HAS_SPECIAL)  # fmt: skip
                        pass""",
        change_checks.check_nothing_left,
    ),
    "a row that is searched below a special token's logit": Mutant(
        "keyed/device/walk.py", "                if is_loose(request, request_params):", "                if False:",
        change_checks.check_penalised_tiles,
    ),
}  # fmt: skip


def mutated(mutant, folder, name):
    """The package of kernels with one edit, imported as `name` from `folder`."""
    home = folder / name
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("__pycache__"))
    for path in home.rglob("*.py"):
        text = path.read_text(encoding="utf-8").replace("draftproof.kernels", name)
        if mutant is not None and path == home / mutant.module:
            assert text.count(mutant.right) == 1, f"{mutant.right!r} is found {text.count(mutant.right)} times"
            text = text.replace(mutant.right, mutant.wrong)
        path.write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
