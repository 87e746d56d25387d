"""What one emitted token says about the law that it should have been drawn from, as arrays.

`score_rows` reduces each row of the target's law, and the draft's where it is known, to a dozen numbers: everything
that the statistics look at. Arrays have the shape [..., N]; leading axes are independent runs.

The order of tokens is by p, the most probable first, ids breaking ties; or by id; or by p/q. A token's randomised
position in that order is U = F(before x) + W p(x), W uniform and the auditor's own: under the null hypothesis the U
of all tokens are independent and uniform on [0, 1], whatever the contexts, temperatures and prompts (Rosenblatt's
transform).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
MAX_SURPRISE: Final = 12.0
"""-log p is cut here, in nats, so that its sums have bounded steps; its mean and variance are those of the cut one."""
_CACHED_CELLS: Final = 1 << 16
RARE: Final = 1e-4
"""Tokens below this probability are the tail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """Arrays [..., N], a token each, ordered by request and then by position.

    prob: p(x). pit: U in the order of p. id_pit: U in the order of ids. top_prob, is_top: p(argmax p), and whether x
    is it. repeat_prob, is_repeat: of the token before; end_prob, is_end: of the ending ids. tail_prob, is_tail: of the
    tokens rarer than RARE. surprise: min(-log p(x), MAX_SURPRISE) less its
    mean; surprise_variance and surprise_third: its second and third central moments. Where the draft's law q is
    known: ratio_pit: U in the order of p/q. gain_prob, is_gain: of {q > p}. draft_top_prob, is_draft_top: of argmax
    q. None otherwise. request, prompt, cell [N]: which generation, prompt and setting. position [N]: in the output.
    pass_offset [N]: in its pass, -1 where unknown.
    """

    prob: Floats
    pit: Floats
    id_pit: Floats
    top_prob: Floats
    is_top: NDArray[np.bool_]
    tail_prob: Floats
    is_tail: NDArray[np.bool_]
    surprise: Floats
    surprise_variance: Floats
    surprise_third: Floats
    repeat_prob: Floats
    is_repeat: NDArray[np.bool_]
    end_prob: Floats
    is_end: NDArray[np.bool_]
    request: NDArray[np.int64]
    prompt: NDArray[np.int64]
    cell: NDArray[np.int64]
    position: NDArray[np.int64]
    pass_offset: NDArray[np.int64]
    ratio_pit: Floats | None = None
    gain_prob: Floats | None = None
    is_gain: NDArray[np.bool_] | None = None
    draft_top_prob: Floats | None = None
    is_draft_top: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return int(self.prob.shape[-1])

    @property
    def knows_draft(self) -> bool:
        """True if the draft's law was given with every token."""
        return self.ratio_pit is not None

    def where(self, mask: NDArray[np.bool_]) -> Self:
        """The tokens of `mask` [N], which must be predictable: a function of what was known before each token."""
        kept: dict[str, Any] = {name: None if value is None else value[..., mask] for name, value in self._arrays()}
        return type(self)(**kept)

    @classmethod
    def joined(cls, parts: Sequence[TokenScores]) -> TokenScores:
        """All tokens of several; the draft's columns are kept if all of them have them."""
        columns: dict[str, Any] = {}
        for item in fields(cls):
            values = [getattr(part, item.name) for part in parts]
            known = all(value is not None for value in values)
            columns[item.name] = np.concatenate(values, axis=-1) if known else None
        return cls(**columns)

    def _arrays(self) -> list[tuple[str, Any]]:
        return [(item.name, getattr(self, item.name)) for item in fields(self)]


def score_rows(
    probs: Floats,
    token_ids: NDArray[np.int64],
    random_source: np.random.Generator,
    *,
    draft_probs: Floats | None = None,
    previous_ids: NDArray[np.int64] | None = None,
    ending_ids: Sequence[int] = (),
    request: NDArray[np.int64] | None = None,
    prompt: NDArray[np.int64] | None = None,
    cell: NDArray[np.int64] | None = None,
    position: NDArray[np.int64] | None = None,
    pass_offset: NDArray[np.int64] | None = None,
) -> TokenScores:
    """Scores of `token_ids` [..., N] under `probs` [..., N, V]; draft_probs likewise, where known.

    random_source: the auditor's own, for W. previous_ids [..., N]: the token before each, -1 where there is none.
    ending_ids: EOS. The index arrays are [N]; zeros if left out (-1 for pass_offset).
    """
    num_tokens = token_ids.shape[-1]
    spread = random_source.random(token_ids.shape)
    previous = np.full(token_ids.shape, -1) if previous_ids is None else previous_ids
    # Pieces whose intermediate arrays stay in a core's cache.
    size = max(_CACHED_CELLS // max(probs[..., :1, :].size, 1), 1)
    pieces = []
    for start in range(0, max(num_tokens, 1), size):
        part = slice(start, start + size)
        draft = None if draft_probs is None else draft_probs[..., part, :]
        rest = token_ids[..., part], spread[..., part], previous[..., part]
        pieces.append(_columns(probs[..., part, :], *rest, draft, ending_ids))
    columns: dict[str, Any] = {name: np.concatenate([piece[name] for piece in pieces], -1) for name in pieces[0]}
    zeros = np.zeros(num_tokens, dtype=np.int64)
    for name, given in (("request", request), ("prompt", prompt), ("cell", cell), ("position", position)):
        columns[name] = zeros if given is None else given
    columns["pass_offset"] = zeros - 1 if pass_offset is None else pass_offset
    return TokenScores(**columns)


def _columns(
    probs: Floats,
    token_ids: NDArray[np.int64],
    spread: Floats,
    previous: NDArray[np.int64],
    draft_probs: Floats | None,
    ending_ids: Sequence[int],
) -> dict[str, Any]:
    place = token_ids[..., None]
    own = np.take_along_axis(probs, place, -1)
    earlier_id = np.arange(probs.shape[-1]) < place
    before = _mass(probs, (probs > own) | ((probs == own) & earlier_id))
    top = probs.argmax(-1)
    own_prob = own[..., 0]
    safe = np.maximum(previous, 0)[..., None]
    columns: dict[str, Any] = {
        "prob": own_prob,
        "repeat_prob": np.where(previous < 0, 0.0, np.take_along_axis(probs, safe, -1)[..., 0]),
        "is_repeat": previous == token_ids,
        "end_prob": probs[..., list(ending_ids)].sum(-1),
        "is_end": np.isin(token_ids, list(ending_ids)),
        "pit": np.clip(before + spread * own_prob, 0.0, 1.0),
        "id_pit": np.clip(_mass(probs, earlier_id) + spread * own_prob, 0.0, 1.0),
        "top_prob": np.take_along_axis(probs, top[..., None], -1)[..., 0],
        "is_top": top == token_ids,
        "tail_prob": _mass(probs, probs < RARE),
        "is_tail": own_prob < RARE,
        **_surprise(probs, own_prob),
    }
    if draft_probs is not None:
        columns |= _against_draft(probs, draft_probs, own_prob, token_ids, earlier_id, spread)
    return columns


def _mass(probs: Floats, mask: NDArray[np.bool_]) -> Floats:
    """[...] the probability of the tokens in `mask`, both [..., V]."""
    mass: Floats = np.einsum("...v,...v->...", probs, mask)
    return mass


def _surprise(probs: Floats, own_prob: Floats) -> dict[str, Floats]:
    with np.errstate(divide="ignore"):
        cut = np.minimum(-np.log(probs), MAX_SURPRISE)
        own = np.minimum(-np.log(own_prob), MAX_SURPRISE)
    squared = cut * cut
    mean = np.einsum("...v,...v->...", probs, cut)
    second = np.einsum("...v,...v->...", probs, squared)
    third = np.einsum("...v,...v,...v->...", probs, squared, cut)
    return {
        "surprise": own - mean,
        "surprise_variance": np.maximum(second - mean**2, 0.0),
        "surprise_third": third - 3 * mean * second + 2 * mean**3,
    }


def _against_draft(
    probs: Floats,
    draft_probs: Floats,
    own_prob: Floats,
    token_ids: NDArray[np.int64],
    earlier_id: NDArray[np.bool_],
    spread: Floats,
) -> dict[str, Any]:
    own_draft = np.take_along_axis(draft_probs, token_ids[..., None], -1)
    # p_v / q_v against p_x / q_x, without a division by zero.
    left, right = probs * own_draft, own_prob[..., None] * draft_probs
    before = _mass(probs, (left > right) | ((left == right) & earlier_id))
    gains = draft_probs > probs
    draft_top = draft_probs.argmax(-1)
    return {
        "ratio_pit": np.clip(before + spread * own_prob, 0.0, 1.0),
        "gain_prob": _mass(probs, gains),
        "is_gain": own_draft[..., 0] > own_prob,
        "draft_top_prob": np.take_along_axis(probs, draft_top[..., None], -1)[..., 0],
        "is_draft_top": draft_top == token_ids,
    }
