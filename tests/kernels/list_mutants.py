"""Wrong twins of what is listed, and of searches in lists. As `mutants.py`."""

from tests.kernels import change_checks, checks, list_checks
from tests.kernels.mutants import Mutant

LIST_MUTANTS = {
    "last bits that aren't searched": Mutant(
        "device/boundary.py", "tl.max(tl.where(inside, key, -2147483648), 0)", "tl.min(tl.where(inside, key, high), 0)",
        list_checks.check_logits_that_differ_in_their_last_bits,
    ),
    "groups of one slot": Mutant(
        "device/listing.py", "ids = tile * TILE + 4 * slot +", "ids = tile * TILE + 0 * slot +",
        list_checks.check_short_lists,
    ),
    "groups of one tile": Mutant(
        "device/listing.py", "* SLOTS + 4 * (word % FOURS)", "* 0 + 4 * (word % FOURS)",
        list_checks.check_short_lists,
    ),
    "groups of half of the tiles": Mutant(
        "device/listing.py", "tl.where(is_low, 0, 32)", "0", list_checks.check_more_tiles_than_lanes
    ),
    "a group's first token for all": Mutant(
        "device/listing.py", "(bit >> 3) * (4 * SLOTS) + (bit & 7)", "(bit >> 3) * (4 * SLOTS)",
        list_checks.check_short_lists,
    ),
    "a group's first quad for all": Mutant(
        "device/listing.py", "(TILE // 4) + index * SLOTS + group % SLOTS", "(TILE // 4) + group % SLOTS",
        list_checks.check_tiles_of_four_groups,
    ),
    "the first tiles listed again": Mutant(
        "device/listing.py", "tl.load(tiles + after + lane,", "tl.load(tiles + lane,",
        list_checks.check_more_tiles_than_lanes,
    ),
    "one special token of a lane's": Mutant(
        "device/listing.py", "start + lowest_bit(hits) * LANES + lane", "start + lane", change_checks.check_penalties
    ),
    "a tie too many": Mutant(
        "device/boundary.py", "range(0, num_kept)", "range(0, num_kept + 1)", list_checks.check_ties_where_top_p_ends
    ),
    "masks that lists don't ask": Mutant(
        "device/bits.py", "tl.load(row[1] + eighth, mask=there, other=0).to(tl.int32) << (8 * group)",
        "-1", change_checks.check_changed_lanes,
    ),
    "special tokens listed as they were": Mutant(
        "device/bits.py", "bits = bits & ~tl.load(words + tile * (SLOTS // 2) + lane, mask=inside, other=0)", "pass",
        change_checks.check_changed_lanes,
    ),
    "special tokens of small tiles listed as they were": Mutant(
        "device/bits.py", "bits = bits & ~(tl.load(row[2] + byte, mask=inside, other=0).to(tl.int32) << (8 * group))",
        "pass", change_checks.check_penalised_tiles,
    ),
    "special tokens that aren't listed": Mutant(
        "device/listing.py", "(shape[0] - shape[1]) * TILE, bound", "0, bound",
        change_checks.check_penalties,
    ),
    "special tokens of the first rows again": Mutant(
        "device/read_kernel.py", "row_index + ahead, row_index)", "row_index, row_index)",
        list_checks.check_special_tokens_of_many_rows,
    ),
    "the first part of a long list": Mutant(
        "device/boundary.py", "range(0, num_found, SHORT)", "range(0, SHORT, SHORT)", checks.check_top_k_top_p
    ),
    "a lane's runner-up forgotten": Mutant(
        "device/draw.py", "runner = tl.maximum(runner, tl.minimum(best, scores))", "pass",
        list_checks.check_near_ties_of_lists,
    ),
    "a list's near ties left to float32": Mutant(
        "device/draw.py", "(runner >= floor).to(tl.int32), 0) > 1:", "(runner >= floor).to(tl.int32), 0) > 99:",
        list_checks.check_near_ties_of_lists,
    ),
}  # fmt: skip
