"""Invariant execution: a token's logits are the same bits whatever is computed beside it.

Floating-point sums depend on their order, and kernels choose the order by the shape of the whole forward. So the
same token scored alone and scored as the third of nine rows gets logits that differ in the last bits, and now and
then another token wins. Under `invariant` the shape that matters to a token is a function of its position alone:
keys are read in steps of `KEY_STEP` columns, masked beyond the token (with one more where branches of trees would find
no columns else, `branches.py`), or kernels add them up one after another; of the policies below the first that
holds on this machine is taken.

- `RowShapes`: where attention adds up keys in their order (`native/`), forwards have as many tokens and keys as there
  are.
- `StepShapes`: forwards keep their own width; only the queries of attention are padded, by a few, and forwards of
  fewer tokens than the linear layers need to sum in one order: none where they do so for any number of rows, as
  oneDNN's packed kernels do (`cpu_linear.py`), two where a single row has a kernel of its own; or four, where that is
  measured to be faster (in bfloat16 two rows can take longer than four). Where products that aren't packed have another
  order from some number of rows on, as on processors with AMX, longer prompts are cut; packed ones cut themselves.
- `FixedShapes`: every forward has `width` tokens, of whatever requests, and padding.

Neither is taken on trust. `summation.py` and `key_order.py` ask the kernels with numbers that show any other order of
a sum, `pointwise.py` whether operations look at a number's place; `probe` runs the model over the same tokens, cut in
many ways, in another slot, beside other rows, near the beginning and far into the cache, and compares the logits bit by
bit. If no policy passes, the target is refused with an error that says how to go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import torch

from draftproof.errors import UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.pointwise import Recorded, pointwise_agrees
from draftproof.targets.shapes import KEY_STEP, QUERY_STEPS, FixedShapes, RowShapes, Shapes, StepShapes
from draftproof.targets.support import num_shards

if TYPE_CHECKING:
    from draftproof.targets.hf import HFTarget

NUM_TOKENS = 32
# Each cut adds up to NUM_TOKENS; together they hold every width from 1 to 18 and put tokens at many row indices.
CUTS = (
    (32,),
    (1, 2, 3, 4, 5, 6, 7, 1, 1, 2),
    (8, 9, 15),
    (10, 11, 11),
    (12, 13, 7),
    (14, 18),
    (16, 16),
    (17, 15),
)
# Tokens and parents of a tree, and its path whose bits are compared with a chain's.
TREE_PARENTS = (-1, 0, 0, 2, 1, 3, 3)
TREE_PATH = (0, 2, 3, 6)
# Where the tokens start: near the beginning, and beyond the first 512-key block of attention kernels.
STARTS = (5, 1100)
# A context of so many tokens, appended in pieces of these sizes: as long prompts, whole or in chunks, beside others.
WIDE = 480
WIDE_CUTS = ((480,), (1, 31, 100, 348))
# The layers of a model run the same kernels at the same shapes, and a last bit that differs in one spreads to every
# logit, so the first few are enough.
NUM_LAYERS = 4
SEED = 20
NUM_TIMED = 7
FEW_TOKENS = 4
"""Of as many, products can be faster than of fewer."""
MOST_PADDED = 16
"""Forwards are padded to as many tokens at most before a fixed number is tried."""


def policies(target: HFTarget, width: int) -> Iterator[Shapes]:
    """From the cheapest to the dearest, without those that the machine's kernels rule out.

    Static forwards have fixed shapes: a GPU's matrix products are chosen by the number of rows. So have those that are
    cut over processes, whose sums are gathered by size.
    """
    if not target.is_static and num_shards(target.model) == 1:
        least, most = target.row_window()
        fits = least <= MOST_PADDED and (most is None or most >= width)
        if target.attends_by_row:
            step = None
            if fits:
                yield RowShapes(least, most)
        else:
            step = next((step for step in QUERY_STEPS if target.attention_agrees(step)), None)
        if fits and step is not None:
            yield StepShapes(_cheapest(target, least, most), step, most, spare_from=target.spare_from())
    for candidate in dict.fromkeys((width, 16 * -(-width // 16), 32 * -(-width // 32))):
        yield FixedShapes(candidate)


def _cheapest(target: HFTarget, least: int, most: int | None) -> int:
    """To how many tokens narrow forwards are padded, where they have to be: the bits are the same from `least` on."""
    if not 1 < least < FEW_TOKENS:
        return least
    times = {least: inf, FEW_TOKENS: inf}
    with target.borrowed(StepShapes(least, most_tokens=most), NUM_LAYERS, KEY_STEP):
        for turn in range(NUM_TIMED):
            for num_tokens in times:
                target.shapes = StepShapes(num_tokens)
                began = time.perf_counter()
                target.score([ScoreRequest(0, (0,))])
                if turn:  # the first compiles kernels
                    times[num_tokens] = min(times[num_tokens], time.perf_counter() - began)
    return min(times, key=times.__getitem__)


def choose_shapes(target: HFTarget, width: int) -> Shapes:
    """The first policy under which the target's bits don't depend on the cut; UnsupportedModelError if none."""
    tried = []
    for shapes in policies(target, width):
        difference = probe(target, shapes)
        if difference is not None and target.keeps_branches_in_place:
            target.keep_branches_in_place(False)
            difference = probe(target, shapes)
        if difference is None:
            return shapes
        tried.append(f"{shapes.name}: {difference}")
    raise UnsupportedModelError(
        f"this model's logits in {target.dtype} depend on what is computed beside them on this machine "
        f"with {torch.get_num_threads()} threads ({'; '.join(tried)}), so invariant execution can't be had; go on with "
        "float32 (--dtype float32), with fewer threads (OMP_NUM_THREADS=2), or without it (invariant=False, "
        "--no-invariant), where speculation may differ from plain decoding at near ties"
    )


def probe(target: HFTarget, shapes: Shapes) -> str | None:
    """None if all cuts give the same bits, else which cut differed, in words."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, target.vocab_size, (NUM_TOKENS,), generator=generator).tolist()
    other = torch.randint(0, target.vocab_size, (NUM_TOKENS,), generator=generator).tolist()
    with target.borrowed(shapes, NUM_LAYERS, min(STARTS[-1] + NUM_TOKENS, target.max_model_len)) as cache:
        for start in STARTS:
            if start + NUM_TOKENS > target.max_model_len:
                continue
            cache.fill_random(start, generator)
            expected: torch.Tensor | None = None
            for index, cut in enumerate(CUTS):
                slot = index % target.num_slots
                for empty in range(target.num_slots):
                    cache.restart(empty, start)
                rows = torch.cat(list(_score_cut(target, slot, tokens, cut, other if index % 2 else None)))
                expected = rows if expected is None else expected
                if not torch.isfinite(rows).all() or not torch.equal(rows, expected):
                    position = _first_difference(rows, expected)
                    return f"cut {cut} changes token {position} after {start} cached ones"
            if expected is not None and not _tree_agrees(target, tokens, start, expected):
                return f"a tree's path differs from the chain after {start} cached tokens"
        if target.device.type == "cpu" and not _pointwise_agrees(target, shapes, tokens[0]):
            return "a pointwise operation depends on where in a forward a token stands"
        if WIDE + NUM_TOKENS <= target.max_model_len and not _wide_agrees(target, tokens, generator):
            return f"a context of {WIDE} tokens depends on its chunks"
    return None


def _pointwise_agrees(target: HFTarget, shapes: Shapes, token_id: int) -> bool:
    num_tokens = shapes.num_tokens or shapes.min_tokens
    target.release(0)
    target.prefill(0, [token_id] * STARTS[0])
    with Recorded(num_tokens) as recorded:
        target.score([ScoreRequest(0, (token_id,))])
    return pointwise_agrees(recorded, shapes.num_tokens)


def _wide_agrees(target: HFTarget, tokens: Sequence[int], generator: torch.Generator) -> bool:
    """Do tokens after a long context have the same bits, whatever chunks it was appended in?"""
    context = torch.randint(0, target.vocab_size, (WIDE,), generator=generator).tolist()
    found = []
    for index, cut in enumerate(WIDE_CUTS):
        slot, done = index % target.num_slots, 0
        target.release(slot)
        for size in cut:
            target.prefill(slot, context[done : done + size])
            done += size
        found.append(torch.cat(list(_score_cut(target, slot, tokens, (NUM_TOKENS,), None))))
    return all(torch.equal(rows, found[0]) for rows in found)


def _score_cut(
    target: HFTarget, slot: int, tokens: Sequence[int], cut: Sequence[int], other: Sequence[int] | None
) -> Iterator[torch.Tensor]:
    """The tokens' logits, `cut[i]` or fewer tokens at a time; beside them another slot's tokens if there is one."""
    neighbour = (slot + 1) % target.num_slots
    done = 0
    for size in cut:
        end = done + size
        while done < end:
            width = min(end - done, target.room(slot))
            requests = [ScoreRequest(slot, tuple(tokens[done : done + width]))]
            if other is not None and neighbour != slot and target.room(neighbour):
                requests.append(ScoreRequest(neighbour, tuple(other[: min(3, target.room(neighbour))])))
            yield target.score(requests)[0]
            done += width


def _tree_agrees(target: HFTarget, tokens: Sequence[int], start: int, expected: torch.Tensor) -> bool:
    """Do a tree's nodes on TREE_PATH, and the tokens scored after it, have the chain's bits?"""
    width = len(TREE_PARENTS)
    if not target.supports_invariant_trees or target.room(0) < width:
        return True
    nodes = [tokens[-1]] * width
    for depth, node in enumerate(TREE_PATH):
        nodes[node] = tokens[depth]
    num_kept = len(TREE_PATH)
    target.cache.restart(0, start)
    tree = target.score([ScoreRequest(0, tuple(nodes), TREE_PARENTS)])[0][list(TREE_PATH)]
    target.rewind(0, start + num_kept, TREE_PATH)
    after = target.score([ScoreRequest(0, tuple(tokens[num_kept : num_kept + 2]))])[0]
    return torch.equal(torch.cat([tree, after]), expected[: num_kept + 2])


def _first_difference(rows: torch.Tensor, expected: torch.Tensor) -> int:
    same = (rows == expected).all(dim=-1)
    return int((~same).nonzero()[0]) if not bool(same.all()) else 0
