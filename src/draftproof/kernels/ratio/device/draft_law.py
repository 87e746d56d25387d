"""q of a drafted token, and whether its law is one that can have drawn it."""

import triton
import triton.language as tl

from draftproof.kernels.device.draw import OK, health, lowered
from draftproof.kernels.device.passes import first_at, list_tiles
from draftproof.kernels.device.ratio import LOGITS, POINT, SPARSE, draft_probs
from draftproof.kernels.device.request import scale_of
from draftproof.kernels.device.rows import level, max_or_nan

DRAFT_FAULT = tl.constexpr(3)


@triton.jit
def drafted_logit(row_index, request, token_id, values, draft_temperature, LAW: tl.constexpr):
    """(the temperature of a draft's law from logits, the drafted token's logit in it)."""
    temperature, z = tl.full((), 1.0, tl.float32), tl.full((), 0.0, tl.float32)
    if LAW == LOGITS:
        temperature = tl.load(draft_temperature + request)
        start = values[0] + (row_index - request).to(tl.int64) * values[1]
        z = tl.load(start + token_id, mask=(token_id >= 0) & (token_id < values[4]), other=-float("inf")).to(tl.float32)
    return temperature, z


@triton.jit
def tiles_of_draft(index, draft_scratch, draft_tiles, there, DRAFT_TILES: tl.constexpr, LAW: tl.constexpr):
    """(maxima, masses) of the tiles of a draft's law from logits, as they were read."""
    reach, mass = 0.0, 0.0
    if LAW == LOGITS:
        tile = tl.arange(0, DRAFT_TILES)
        inside = tile < tl.where(there, draft_tiles, 0)
        reach = tl.load(draft_scratch[0] + index * DRAFT_TILES + tile, mask=inside, other=-float("inf"))
        mass = tl.load(draft_scratch[1] + index * DRAFT_TILES + tile, mask=inside, other=0.0)
    return reach, mass


@triton.jit
def law_of_draft(measured, temperature):
    """(largest logit, mass, level, scale, 1 / mass in float32) of a law from logits; the scale of a greedy one is 0."""
    scale = scale_of(temperature)
    largest = max_or_nan(measured[0])
    total = tl.sum(lowered(measured[0], measured[1], scale, largest), 0)
    top = level(largest, scale)
    return largest, total, top, tl.where(temperature > 0, scale, 0.0), (1.0 / total).to(tl.float32)


@triton.jit
def draft_of_node(row_index, request, token_id, drafted, measured, values, draft_scratch, draft_tiles, nodes,
                  DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr, DRAFT_GROUP: tl.constexpr, LAW: tl.constexpr,
                  STEPS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """(q of the node's token, OK or DRAFT_FAULT); stores the level, scale and 1 / mass of a law from logits.

    drafted, measured: what `drafted_logit` and `tiles_of_draft` return.
    """
    index = row_index - request
    healthy = True
    if LAW == LOGITS:
        temperature, z = drafted
        largest, total, top, node_scale, gain = law_of_draft(measured, temperature)
        healthy = health(largest) == OK
        tl.store(nodes[3] + row_index, top)
        tl.store(nodes[4] + row_index, node_scale)
        tl.store(nodes[5] + row_index, gain)
        start = values[0] + index.to(tl.int64) * values[1]
        own = tl.where(z > -float("inf"), tl.exp2(tl.fma(z, scale_of(temperature), -top)), 0.0)
        q = own.to(tl.float64) / total
        if (temperature == 0) & healthy:
            q = tl.full((), 0.0, tl.float64)
            if z == largest:
                tiles = draft_scratch[2] + index * DRAFT_TILES
                tile_max = draft_scratch[0] + index * DRAFT_TILES
                num_listed = list_tiles(tiles, tile_max, draft_tiles, largest, DRAFT_TILES)
                shape = (draft_tiles, draft_tiles, values[4])
                best = first_at((start, start, start, start, start), tiles, num_listed, shape, largest, DRAFT_GROUP,
                                DRAFT_TILE, False, False)  # fmt: skip
                q = (best == token_id).to(tl.float64)
    elif LAW == POINT:
        q = tl.full((), 1.0, tl.float64)
    else:
        start = values[0] + index.to(tl.int64) * values[1]
        column = tl.arange(0, WIDTH)
        total = tl.zeros((WIDTH,), tl.float64)
        lowest = tl.zeros((WIDTH,), tl.float32)
        for begin in range(0, values[4], WIDTH):
            inside = begin + column < values[4]
            if LAW == SPARSE:
                listed = tl.load(values[2] + index.to(tl.int64) * values[3] + begin + column, mask=inside, other=-1)
                inside = inside & (listed >= 0)
            share = tl.load(start + begin + column, mask=inside, other=0.0)
            total += share.to(tl.float64)
            lowest = tl.minimum(lowest, share)
        mass = tl.sum(total, 0)
        healthy = (mass > 0.999) & (mass < 1.001) & (tl.min(lowest, 0) >= 0)
        node = (start, values[2], values[4], token_id, 0.0, 0.0, 0.0)
        if LAW == SPARSE:
            node = (start, values[2] + index.to(tl.int64) * values[3], values[4], token_id, 0.0, 0.0, 0.0)
        q = draft_probs(node, token_id, LAW, STEPS).to(tl.float64)
    healthy = healthy & (q > 0)
    return q, tl.where(healthy, OK, DRAFT_FAULT)
