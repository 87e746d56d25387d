"""Settles what a packaging leaves open: each possible layout drafts a few tokens, and the one that is accepted wins.

The target writes a few short texts, once: an opening that is sampled, so that they differ and are its own, and the rest
greedily. Every layout proposes at several places of these texts, and its score is how many drafted tokens agree before
the first that does not. A wrong anchor rule agrees far less often; taps that are a layer off hardly matter to some
drafters, and the likelier layout wins a tie. The choice changes speed alone, never the output.
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

_NUM_TEXTS: Final = 6
_NUM_SAMPLED: Final = 8
_NUM_GREEDY: Final = 32
_PLACES: Final = range(_NUM_SAMPLED, _NUM_SAMPLED + _NUM_GREEDY - 8, 2)


def settled(
    layouts: Sequence[BlockLayout], build: Callable[[BlockLayout], BlockDrafter], target: TappedTarget, where: str
) -> BlockDrafter:
    """The drafter of the only layout, or of the one that the probe chose. The target's slots are emptied.

    Raises ModelError where no layout fits the checkpoint.
    """
    if len(layouts) == 1:
        return build(layouts[0])
    texts = _texts(target)
    scores: list[tuple[float, BlockLayout]] = []
    failure: ModelError | None = None
    for layout in layouts:
        try:
            scores.append((_agreeing(build(layout), target, texts), layout))
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
def _texts(target: TappedTarget) -> list[list[int]]:
    """Each begins with the token that texts begin with, or with token 0, and has the same length."""
    config: Any = target.model.config.get_text_config(decoder=True)
    first = getattr(config, "bos_token_id", None)
    texts = [[first if isinstance(first, int) else 0] for _ in range(_NUM_TEXTS)]
    generators = [torch.Generator().manual_seed(index) for index in range(_NUM_TEXTS)]
    for begin in range(0, _NUM_TEXTS, target.num_slots):
        here = range(begin, min(begin + target.num_slots, _NUM_TEXTS))
        for index in here:
            target.release(index - begin)
        for place in range(_NUM_SAMPLED + _NUM_GREEDY):
            logits = target.score([ScoreRequest(index - begin, (texts[index][-1],)) for index in here])
            for index, rows in zip(here, logits, strict=True):
                row = rows[0].float().cpu()
                drawn = torch.multinomial(torch.softmax(row, -1), 1, generator=generators[index])
                texts[index].append(int(drawn) if place < _NUM_SAMPLED else int(row.argmax()))
        for index in here:
            target.release(index - begin)
    return texts


def greedy_request(drafter: BlockDrafter, context_ids: list[int], slot: int = 0) -> DraftRequest:
    """A request at temperature 0, whose laws are point masses: it needs no noise."""
    params = drafter.drawing.chain.resolve(SamplingParams(temperature=0.0), None, drafter.target.vocab_size)
    return DraftRequest(
        slot, context_ids, drafter.layout.num_drafts, KeyedNoise(0), False, params, History(context_ids)
    )


def _agreeing(drafter: BlockDrafter, target: TappedTarget, texts: Sequence[list[int]]) -> float:
    """Mean number of drafted tokens that agree with the text before the first that does not."""
    total = 0
    for token_ids in texts:
        target.prefill(0, token_ids[: _PLACES[-1]])
        for place in reversed(_PLACES):
            reached = target.reachable(0, place)
            target.rewind(0, reached)
            target.prefill(0, token_ids[reached:place])
            [draft] = drafter.propose([greedy_request(drafter, token_ids[: place + 1])])
            drafted, following = draft.token_ids, token_ids[place + 1 :]
            pairs = enumerate(zip(drafted, following, strict=False))
            total += next(
                (index for index, (ours, theirs) in pairs if ours != theirs), min(len(drafted), len(following))
            )
        target.release(0)
        drafter.release(0)
    return total / (len(texts) * len(_PLACES))
