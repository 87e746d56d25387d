"""Settles what a packaging leaves open: each possible layout drafts a few tokens, and the one that is accepted wins.

The target continues a short text greedily, once; then every layout proposes at several places of that text, and its
score is how many drafted tokens agree before the first that does not. A wrong anchor rule or tap convention agrees
hardly ever, so a few places are enough. The choice changes speed alone, never the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.block_drafter import BlockDrafter
from draftproof.drafters.learned.layout import BlockLayout, tell
from draftproof.errors import ModelError
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History
from draftproof.targets.base import ScoreRequest, TappedTarget

_PROMPT_LENGTH: Final = 8
_NUM_CONTINUED: Final = 40
_PLACES: Final = range(_PROMPT_LENGTH, _PROMPT_LENGTH + _NUM_CONTINUED - 12, 4)


def settled(
    layouts: Sequence[BlockLayout], build: Callable[[BlockLayout], BlockDrafter], target: TappedTarget, where: str
) -> BlockDrafter:
    """The drafter of the only layout, or of the one that the probe chose. Slot 0 of the target must be empty.

    Raises ModelError where no layout fits the checkpoint.
    """
    if len(layouts) == 1:
        return build(layouts[0])
    token_ids = _greedy_text(target)
    scores: list[tuple[float, BlockLayout]] = []
    failure: ModelError | None = None
    for layout in layouts:
        try:
            scores.append((_agreeing(build(layout), target, token_ids), layout))
        except ModelError as error:
            failure = error
    if not scores:
        raise failure or ModelError(f"{where}: no layout fits this checkpoint")
    best = max(score for score, _ in scores)
    chosen = next(layout for score, layout in scores if score == best)
    tried = "; ".join(f"{score:.2f} for {layout.describe()}" for score, layout in scores)
    tell(f"drafter {where}: probed {len(scores)} layouts by accepted tokens a draft: {tried}")
    return build(chosen)


@torch.no_grad()
def _greedy_text(target: TappedTarget) -> list[int]:
    """A few token ids of the lower vocabulary and the target's greedy continuation of them."""
    token_ids = [(7 * index + 3) % target.vocab_size for index in range(_PROMPT_LENGTH)]
    target.prefill(0, token_ids[:-1])
    for _ in range(_NUM_CONTINUED):
        logits = target.score([ScoreRequest(0, (token_ids[-1],))])[0]
        token_ids.append(int(logits[0].argmax()))
    target.release(0)
    return token_ids


def greedy_request(drafter: BlockDrafter, context_ids: list[int], slot: int = 0) -> DraftRequest:
    """A request at temperature 0, whose laws are point masses: it needs no noise."""
    params = drafter.drawing.chain.resolve(SamplingParams(temperature=0.0), None, drafter.target.vocab_size)
    return DraftRequest(
        slot, context_ids, drafter.layout.num_drafts, KeyedNoise(0), False, params, History(context_ids)
    )


def _agreeing(drafter: BlockDrafter, target: TappedTarget, token_ids: list[int]) -> float:
    """Mean number of drafted tokens that agree with the text before the first that does not."""
    total = 0
    target.prefill(0, token_ids[: _PLACES[0]])
    for place in _PLACES:
        target.prefill(0, token_ids[target.length(0) : place])
        [draft] = drafter.propose([greedy_request(drafter, token_ids[: place + 1])])
        drafted = draft.token_ids
        following: Any = token_ids[place + 1 : place + 1 + len(drafted)]
        total += next((i for i, pair in enumerate(zip(drafted, following, strict=False)) if pair[0] != pair[1]),
                      len(following))  # fmt: skip
    target.release(0)
    drafter.release(0)
    return total / len(_PLACES)
