"""Tests and edges of rows in one launch, for `rejection` under top-p alone: none after it finds where top-p ends.

A row's test is decided by what its tiles tell of top-p. Where top-p ends matters in one row a request after that, and
there it does for few tokens: the race weighs what lies above a row's edges while it looks at the tokens (between.py).
"""

import triton
import triton.language as tl

from draftproof.kernels.device.brackets import EDGES, sampled_edges, surely_below, surely_from
from draftproof.kernels.device.draw import OK, health, lowered
from draftproof.kernels.device.edges import ASKED, KEPT_MASS, LEAST, MOST, WIDTH
from draftproof.kernels.device.overlap import let_next_begin, wait_for_previous
from draftproof.kernels.device.passes import WHOLE
from draftproof.kernels.device.request import scale_of
from draftproof.kernels.device.rows import level, max_or_nan
from draftproof.kernels.device.samples import BUCKETS, PARTS, share_of_sample, summary_of
from draftproof.kernels.device.top_p import first_bracket
from draftproof.kernels.device.wanted import has_top_p_alone
from draftproof.kernels.ratio.device.measure import measure_row
from draftproof.kernels.ratio.device.unsure import wanted_units


@triton.jit
def bracketed_test_kernel(logits, stride, row_params, request_params, masks, exceptions, scratch, num_tiles, num_plain,
                          vocab_size, draft, values, draft_temperature, draft_scratch, draft_tiles, before, rows, nodes,
                          bracket, residual_masses, num_ended, sample, num_rows, TILE: tl.constexpr,
                          TILES: tl.constexpr, DRAFT_TILES: tl.constexpr, DRAFT_TILE: tl.constexpr,
                          DRAFT_GROUP: tl.constexpr, HAS_ALLOWED: tl.constexpr, HAS_SPECIAL: tl.constexpr,
                          LAW: tl.constexpr, STEPS: tl.constexpr, SUMMED: tl.constexpr, LIST: tl.constexpr,
                          KEY_SHIFT: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Grid: 4 * rows. The first programs put edges into a row each, the next ones find between which logits top-p
    surely ends, the others test a row each. Rows have no special tokens. SUMMED: tokens of a law's probabilities
    that are looked at together."""
    let_next_begin(OVERLAP)
    if tl.program_id(0) < num_rows:
        put_edges(tl.program_id(0), row_params, request_params, scratch, num_tiles, vocab_size, rows, bracket, sample,
                  TILES, OVERLAP)  # fmt: skip
    elif tl.program_id(0) < 2 * num_rows:
        put_limit(tl.program_id(0) - num_rows, row_params, request_params, scratch, num_tiles, vocab_size, bracket,
                  TILES, True, OVERLAP)  # fmt: skip
    elif tl.program_id(0) < 3 * num_rows:
        put_limit(tl.program_id(0) - 2 * num_rows, row_params, request_params, scratch, num_tiles, vocab_size, bracket,
                  TILES, False, OVERLAP)  # fmt: skip
    else:
        measure_row(tl.program_id(0) - 3 * num_rows, logits, stride, row_params, request_params, masks, exceptions,
                    scratch, num_tiles, num_plain, vocab_size, draft, values, draft_temperature, draft_scratch,
                    draft_tiles, before, rows, nodes, bracket, residual_masses, num_ended, TILE, TILES, DRAFT_TILES,
                    DRAFT_TILE, DRAFT_GROUP, HAS_ALLOWED, False, LAW, STEPS, SUMMED, True, False, False, False, True,
                    False, OVERLAP, True, LIST, KEY_SHIFT)  # fmt: skip


@triton.jit
def measured_row(row_index, scratch, num_tiles, scale, TILES: tl.constexpr):
    """(the tiles' maxima [TILES], their masses, the row's largest logit, its level, the row's mass)."""
    tile = tl.arange(0, TILES)
    reach = tl.load(scratch[0] + row_index * TILES + tile, mask=tile < num_tiles, other=-float("inf"))
    masses = tl.load(scratch[1] + row_index * TILES + tile, mask=tile < num_tiles, other=0.0)
    largest = max_or_nan(reach)
    masses = lowered(reach, masses, scale, largest)
    return reach, masses, largest, level(largest, scale), tl.sum(masses, 0)


@triton.jit
def top_p_of(request, request_params):
    """A request's top_p, below 1 by more than rounding."""
    return tl.minimum(tl.load(request_params[2] + request), 1.0 - 1e-12)


@triton.jit
def put_edges(row_index, row_params, request_params, scratch, num_tiles, vocab_size, rows, bracket, sample,
              TILES: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Writes a row's edges, which no limits hold yet, the mass that is to be kept, and whether it is asked at all."""
    request = tl.load(row_params[0] + row_index)
    asks, top_p = has_top_p_alone(request, request_params), top_p_of(request, request_params)
    scale = scale_of(tl.load(request_params[0] + request))
    edges, at = bracket[0] + WIDTH * row_index, tl.arange(0, 8)
    wait_for_previous(OVERLAP)
    reach, masses, largest, top, total = measured_row(row_index, scratch, num_tiles, scale, TILES)
    asked = asks & (health(largest) == OK)
    summary = summary_of(sample[0] + row_index * (PARTS * BUCKETS), sample[1] + 2 * row_index, scale, asks)
    likely = sampled_edges(summary, scale, top, (1.0 - top_p) * total, share_of_sample(vocab_size))
    if asked:
        units = wanted_units(top_p, total)
        tl.store(edges + at, likely, mask=at < EDGES)
        tl.store(bracket[1] + WIDTH * row_index + KEPT_MASS, units.to(tl.int64))
        tl.store(rows[6] + row_index, units / WHOLE * (1.0 - 1e-6))
    tl.store(edges + ASKED, tl.where(asked, 1.0, 0.0))


@triton.jit
def put_limit(row_index, row_params, request_params, scratch, num_tiles, vocab_size, bracket, TILES: tl.constexpr,
              BELOW: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    """Writes a logit that top-p's last token surely lies BELOW, or one that it surely doesn't lie below."""
    request = tl.load(row_params[0] + row_index)
    top_p, scale = top_p_of(request, request_params), scale_of(tl.load(request_params[0] + request))
    edges = bracket[0] + WIDTH * row_index
    wait_for_previous(OVERLAP)
    reach, masses, largest, top, total = measured_row(row_index, scratch, num_tiles, scale, TILES)
    least, most = first_bracket(largest, scale, top, total, top_p, vocab_size)
    if BELOW:
        tl.store(edges + MOST, surely_below(reach, masses, top_p * total, most))
    else:
        tl.store(edges + LEAST, surely_from(reach, scale, top, top_p * total, least, most))
