"""The kernel that makes the list of special tokens and their processed logits, before the read."""

import triton
import triton.language as tl


@triton.jit
def exceptions_kernel(logits, stride, allowed, allowed_stride, rows, nodes, seen, bias, penalties, special,
                      special_stride, out_ids, out_logits, num_nodes, num_seen, num_bias, num_entries, vocab_size,
                      CHUNK: tl.constexpr, OTHERS: tl.constexpr, HAS_ALLOWED: tl.constexpr):  # fmt: skip
    """Grid: (rows, num_entries / CHUNK). A request's first row also writes what is the request's.

    rows: (request [rows], offsets [requests + 1]). nodes: (drafted [requests, num_nodes], ancestors [rows, num_nodes]).
    seen: (ids, counts) [requests, num_seen]. bias: (ids, biases) [requests, num_bias]. penalties: (repetition,
    frequency, presence) [requests]. special: [requests, W] int32, zeroed. out_ids: [requests, num_entries] int32.
    out_logits: [rows, num_entries] float32.
    """
    row_index = tl.program_id(0)
    request = tl.load(rows[0] + row_index)
    seen_ids, drafted, bias_ids = (
        seen[0] + request * num_seen,
        nodes[0] + request * num_nodes,
        bias[0] + request * num_bias,
    )
    entry = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    in_seen = entry < num_seen
    in_draft = ~in_seen & (entry < num_seen + num_nodes)
    in_bias = (entry >= num_seen + num_nodes) & (entry < num_seen + num_nodes + num_bias)
    ids = tl.load(seen_ids + entry, mask=in_seen, other=-1)
    ids = tl.where(in_draft, tl.load(drafted + (entry - num_seen), mask=in_draft, other=-1), ids)
    ids = tl.where(in_bias, tl.load(bias_ids + (entry - num_seen - num_nodes), mask=in_bias, other=-1), ids)
    ids = tl.where(ids < vocab_size, ids, -1)

    # Seen ids are distinct, and so are those with a bias: only the others can repeat an entry before them.
    repeats = tl.zeros((CHUNK,), tl.int32)
    holds_tokens = tl.program_id(1) * CHUNK < num_seen + num_nodes + num_bias
    if ((tl.program_id(1) + 1) * CHUNK > num_seen) & holds_tokens:
        for start in range(0, num_seen, OTHERS):
            place = start + tl.arange(0, OTHERS)
            other = tl.load(seen_ids + place, mask=place < num_seen, other=-1)
            repeats += tl.sum((ids[:, None] == other[None, :]).to(tl.int32), 1)
        repeats = tl.where(in_seen, 0, repeats)
    before = tl.zeros((CHUNK,), tl.int32)
    for start in range(0, num_nodes, OTHERS):
        place = start + tl.arange(0, OTHERS)
        other = tl.load(drafted + place, mask=place < num_nodes, other=-1)
        same = ids[:, None] == other[None, :]
        repeats += tl.sum((same & (num_seen + place[None, :] < entry[:, None])).to(tl.int32), 1)
        above = tl.load(nodes[1] + row_index * num_nodes + place, mask=place < num_nodes, other=0) != 0
        before += tl.sum((same & above[None, :]).to(tl.int32), 1)
    ids = tl.where(repeats == 0, ids, -1)
    there = ids >= 0

    added = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, num_bias, OTHERS):
        place = start + tl.arange(0, OTHERS)
        other = tl.load(bias_ids + place, mask=place < num_bias, other=-2)
        of_other = tl.load(bias[1] + request * num_bias + place, mask=place < num_bias, other=0.0)
        added += tl.sum(tl.where(ids[:, None] == other[None, :], of_other[None, :], 0.0), 1)
    counts = tl.load(seen[1] + request * num_seen + entry, mask=in_seen, other=0) + before
    z = tl.load(logits + row_index.to(tl.int64) * stride + ids, mask=there, other=-float("inf")).to(tl.float32) + added
    repetition = tl.load(penalties[0] + request)
    repeated = tl.where(z > 0, tl.div_rn(z, tl.zeros((CHUNK,), tl.float32) + repetition), z * repetition)
    z = tl.where(in_seen | (counts > 0), repeated, z)
    z = z - counts.to(tl.float32) * tl.load(penalties[1] + request)
    z = z - (counts > 0).to(tl.float32) * tl.load(penalties[2] + request)
    drawn = there
    if HAS_ALLOWED:
        words = tl.load(allowed + row_index.to(tl.int64) * allowed_stride + ids // 32, mask=there, other=0)
        drawn = drawn & (((words >> (ids % 32)) & 1) != 0)
    inside = entry < num_entries
    tl.store(out_logits + row_index.to(tl.int64) * num_entries + entry, tl.where(drawn, z, -float("inf")), mask=inside)
    if tl.load(rows[1] + request) == row_index:
        tl.store(out_ids + request.to(tl.int64) * num_entries + entry, ids, mask=inside)
        bit = tl.full((CHUNK,), 1, tl.int32) << (ids % 32)
        tl.atomic_or(special + request.to(tl.int64) * special_stride + ids // 32, bit, mask=there)
