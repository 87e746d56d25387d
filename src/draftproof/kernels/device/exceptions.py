"""A row's special tokens: processed one by one, raced, and written as tiles that stand behind the plain ones."""

import triton
import triton.language as tl

from draftproof.kernels.device.bits import has_bit
from draftproof.kernels.device.noise import field_at, score
from draftproof.kernels.device.race import nothing_found, ranked
from draftproof.kernels.device.rows import level, max_or_nan

PART = tl.constexpr(128)  # tokens that are processed at once


@triton.jit
def read_exceptions(row, row_index, request, exceptions, noise, scale, races, tiles, vocab_size, TILE: tl.constexpr,
                    HAS_ALLOWED: tl.constexpr, RACE: tl.constexpr, MASS: tl.constexpr,
                    plain=0, PLAIN: tl.constexpr = False):  # fmt: skip
    """(what is found among a row's special tokens, whether one is NaN); writes their logits, and their tiles' numbers.

    exceptions: see request.py. tiles: where the first of their tiles has its (maximum, mass).
    races, and what is written under MASS: as in `read_split`. PLAIN: their logits before any change are
    written to `plain` (device/loose.py).
    """
    found = nothing_found()
    num_entries = exceptions[2]
    # Entries are on their way two parts ahead, and the logits that they name one part.
    entry = tl.arange(0, PART)
    listed, coming = entries_of(row, request, entry, exceptions), entries_of(row, request, entry + PART, exceptions)
    logits = logits_at(row, listed[0])
    for start in range(0, exceptions[3], PART):
        ids, seen = listed[0], listed[2]
        next_logits = logits_at(row, coming[0])
        z, before = processed(row, row_index, request, ids, logits, listed[1], seen, exceptions, HAS_ALLOWED)
        listed, logits = coming, next_logits
        coming = entries_of(row, request, start + entry + 2 * PART, exceptions)
        tl.store(row[4] + start + tl.arange(0, PART), z)
        if PLAIN:
            tl.store(plain + start + tl.arange(0, PART), before)
        if RACE:
            if races:
                found = ranked(z, ids, score(z * scale, field_at(ids, noise)), found, vocab_size)
    for start in range(tl.cdiv(exceptions[3], PART) * PART, num_entries, PART):
        nothing = tl.full((PART,), -float("inf"), tl.float32)
        tl.store(row[4] + start + tl.arange(0, PART), nothing)
        if PLAIN:
            tl.store(plain + start + tl.arange(0, PART), nothing)
    tl.debug_barrier()
    faulty = found[0][0] != found[0][0]
    for chunk in range(0, num_entries // TILE):
        z = tl.load(row[4] + chunk * TILE + tl.arange(0, TILE))
        largest = max_or_nan(z)
        faulty = faulty | (largest != largest)
        tl.store(tiles[0] + chunk, largest)
        if MASS:
            tl.store(tiles[1] + chunk, tl.sum(tl.exp2(tl.fma(z, scale, -level(largest, scale))), 0))
    return found, faulty


@triton.jit
def entries_of(row, request, entry, exceptions):
    """(ids, biases, what is known of them) [PART] of entries; ids are -1 beyond the last."""
    inside = entry < exceptions[2]
    at = request.to(tl.int64) * exceptions[2] + entry
    ids = tl.load(row[3] + entry, mask=inside, other=-1)
    return ids, tl.load(exceptions[4] + at, mask=inside, other=0.0), tl.load(exceptions[5] + at, mask=inside, other=0)


@triton.jit
def logits_at(row, ids):
    """[PART] float32 logits of tokens, -inf for those that are none."""
    return tl.load(row[0] + ids, mask=ids >= 0, other=-float("inf")).to(tl.float32)


@triton.jit
def processed(row, row_index, request, ids, logits, biases, seen, exceptions, HAS_ALLOWED: tl.constexpr):
    """(logits after bias, penalties and mask, after the mask alone) [PART]; -inf for entries without a token."""
    nodes, num_nodes = exceptions[6], exceptions[8]
    counts = seen >> 2
    if tl.max(seen & 2, 0) > 0:
        for node in range(0, num_nodes):
            other = tl.load(nodes + request * num_nodes + node)
            above = tl.load(exceptions[7] + row_index * num_nodes + node) != 0
            counts += ((ids == other) & above).to(tl.int32)
    z = logits + biases
    repetition = tl.load(exceptions[9] + request)
    repeated = tl.where(z > 0, tl.div_rn(z, tl.zeros(z.shape, tl.float32) + repetition), z * repetition)
    z = tl.where(((seen & 1) != 0) | (counts > 0), repeated, z)
    # A product that is rounded before it is taken away, as the host does it: + 0.0 keeps it from being fused.
    z = z - tl.fma(counts.to(tl.float32), tl.load(exceptions[10] + request), 0.0)
    z = z - tl.where(counts > 0, tl.load(exceptions[11] + request), 0.0)
    drawn = ids >= 0
    if HAS_ALLOWED:
        drawn = drawn & has_bit(row[1], ids, drawn)
    return tl.where(drawn, z, -float("inf")), tl.where(drawn, logits, -float("inf"))
