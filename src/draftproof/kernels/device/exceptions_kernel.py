"""The kernel that lists each request's special tokens and marks them by a bit each, while the read begins."""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import special_at
from draftproof.kernels.device.overlap import let_next_begin


@triton.jit
def exceptions_kernel(drafted, seen, bias, special, special_stride, listed, num_nodes, num_seen, num_bias, num_entries,
                      num_words, vocab_size, CHUNK: tl.constexpr,
                      OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: requests. Each token is listed once: where it is seen, or else drafted first, or else biased.

    drafted: [requests, num_nodes]. seen: (ids, counts) [requests, num_seen]. bias: (ids, biases) [requests, num_bias].
    special: [requests, num_words] int32. listed: (ids, biases, 4 * counts + 2 * whether drafted + whether seen),
    [requests, num_entries] each; ids are -1 for entries without a token.
    """
    let_next_begin(OVERLAP)
    request = tl.program_id(0).to(tl.int64)
    special += request * special_stride
    drafted += request * num_nodes
    biases = (bias[0] + request * num_bias, bias[1] + request * num_bias)
    at = request * num_entries
    out = (listed[0] + at, listed[1] + at, listed[2] + at)
    lane = tl.arange(0, CHUNK)
    # All that memory is slow to bring is on its way while the bits are cleared.
    seen_at = (seen[0] + request * num_seen, seen[1] + request * num_seen)
    next_ids, next_counts = seen_of(seen_at, lane, num_seen)
    nodes = tl.load(drafted + lane, mask=lane < num_nodes, other=-1)
    biased = tl.load(biases[0] + lane, mask=lane < num_bias, other=-1)
    added = tl.load(biases[1] + lane, mask=lane < num_bias, other=0.0)
    for start in range(0, num_words, CHUNK):
        tl.store(special + start + lane, tl.zeros((CHUNK,), tl.int32), mask=start + lane < num_words)
    tl.debug_barrier()
    for start in range(0, num_seen, CHUNK):
        place = start + lane
        ids, counts = next_ids, next_counts
        next_ids, next_counts = seen_of(seen_at, place + CHUNK, num_seen)
        ids = marked(special, ids, vocab_size)
        is_drafted = tl.zeros((CHUNK,), tl.int32)
        for node in range(0, num_nodes):
            is_drafted |= ((ids >= 0) & (ids == tl.load(drafted + node))).to(tl.int32)
        enter(out, place, place < num_seen, ids, 0.0 * lane, 4 * counts + 2 * is_drafted + 1)
    tl.debug_barrier()
    for start in range(0, num_nodes, CHUNK):
        place = start + lane
        ids = nodes
        nodes = tl.load(drafted + place + CHUNK, mask=place + CHUNK < num_nodes, other=-1)
        repeats = tl.zeros((CHUNK,), tl.int32)
        for node in range(0, num_nodes):
            repeats += ((ids == tl.load(drafted + node)) & (node < place)).to(tl.int32)
        ids = marked(special, tl.where(repeats == 0, ids, -1), vocab_size)
        enter(out, num_seen + place, place < num_nodes, ids, 0.0 * lane, 2 * (ids >= 0).to(tl.int32))
    tl.debug_barrier()
    for start in range(0, num_bias, CHUNK):
        place = start + lane
        ids = marked(special, biased, vocab_size)
        enter(out, num_seen + num_nodes + place, place < num_bias, ids, added, 0 * ids)
        # Few are listed already.
        again = tl.where((biased >= 0) & (biased < vocab_size) & (ids < 0), biased, vocab_size)
        token_id = tl.min(again, 0)
        while token_id < vocab_size:
            bias_again(out, token_id, tl.sum(tl.where(again == token_id, added, 0.0), 0), num_seen + num_nodes, CHUNK)
            again = tl.where(again == token_id, vocab_size, again)
            token_id = tl.min(again, 0)
        biased = tl.load(biases[0] + place + CHUNK, mask=place + CHUNK < num_bias, other=-1)
        added = tl.load(biases[1] + place + CHUNK, mask=place + CHUNK < num_bias, other=0.0)
    for start in range(num_seen + num_nodes + num_bias, num_entries, CHUNK):
        enter(out, start + lane, start + lane < num_entries, 0 * lane - 1, 0.0 * lane, 0 * lane)


@triton.jit
def seen_of(seen, place, num_seen):
    """(ids, counts) of seen tokens at `place` [N], (-1, 0) beyond them."""
    inside = place < num_seen
    return tl.load(seen[0] + place, mask=inside, other=-1), tl.load(seen[1] + place, mask=inside, other=0)


@triton.jit
def marked(special, ids, vocab_size):
    """`ids` [N], all different, with -1 for those that are no token or whose bit is set; sets the others'."""
    there = (ids >= 0) & (ids < vocab_size)
    byte = special_at(ids // 8)
    bit = tl.full(ids.shape, 1, tl.int32) << (8 * (byte % 4) + ids % 8)
    before = tl.load(special + byte // 4, mask=there, other=0, cache_modifier=".cg")
    there = there & ((before & bit) == 0)
    tl.atomic_or(special + byte // 4, bit, mask=there, sem="relaxed")
    return tl.where(there, ids, -1)


@triton.jit
def bias_again(out, token_id, added, count, CHUNK: tl.constexpr):
    """Writes the bias of a token that is among the first `count` entries."""
    for start in range(0, count, CHUNK):
        place = start + tl.arange(0, CHUNK)
        ids = tl.load(out[0] + place, mask=place < count, other=-1)
        tl.store(out[1] + place, 0.0 * ids + added, mask=ids == token_id)


@triton.jit
def enter(out, place, inside, ids, added, counts):
    """Writes entries of the list."""
    tl.store(out[0] + place, ids, mask=inside)
    tl.store(out[1] + place, added, mask=inside)
    tl.store(out[2] + place, counts, mask=inside)
