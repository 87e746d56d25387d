"""The hypotheses of one audit: which statistics over which tokens, with which share of the false-alarm rate.

The list is fixed by `Layout` before the first token is seen. Half of the rate goes to all tokens pooled, three tenths
to the settings one by one (pooled too if there is only one), the rest to strata.

Strata are predictable ones: the first token of an output, bands of absolute positions and, only where the engine's
passes start independently of the noise to come (ratio tests, match), the offset from a pass's start. Which token was
accepted, recovered or a bonus depends on the tokens, and is never a stratum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.scores import Floats, TokenScores
from draftproof.audit.statistics import lags, pit, sums
from draftproof.audit.statistics.holm import adjusted

ALL: Final = "all tokens"
_POSITION_BANDS: Final = (("first token", 0, 1), ("positions 2 to 4", 1, 4), ("positions 5 to 16", 4, 16))
_OFFSETS: Final = (
    ("pass offset 0", 0, 1),
    ("pass offset 1", 1, 2),
    ("pass offset 2", 2, 3),
    ("pass offset 3 on", 3, None),
)
_STRATUM_BINS: Final = 8


@dataclass(frozen=True, slots=True)
class Layout:
    """What decides the list of hypotheses. cells: names of the settings. knows_draft: the draft's law is given.
    by_offset: pass offsets are known and predictable. shift: total variation that rounding may cause, per token.
    """

    cells: tuple[str, ...] = ("",)
    knows_draft: bool = False
    by_offset: bool = False
    shift: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One statistic over one set of tokens, in one run or several ([...]).

    z: signed, 0 where the statistic has no sign. effect: in the statistic's own unit, see `EFFECTS`.
    """

    statistic: str
    tokens: str
    weight: float
    num_tokens: int
    p_value: Floats
    effect: Floats
    z: Floats

    @property
    def name(self) -> str:
        """As in reports."""
        return f"{self.statistic}, {self.tokens}"


EFFECTS: Final = {
    "pit": "binned total variation",
    "pit by id": "binned total variation",
    "pit by p/q": "binned total variation",
    "argmax p": "how much more often than its probability",
    "q > p": "how much more often than its probability",
    "argmax q": "how much more often than its probability",
    "repeat": "how much more often than its probability",
    "end": "how much more often than its probability",
    "tail": "how much more often than its probability",
    "surprise": "nats",
    "lags": "correlation",
    "across requests": "correlation",
}
WITHOUT_DRAFT: Final = ("pit", "pit by id", "argmax p", "repeat", "end", "tail", "surprise", "lags", "across requests")
WITH_DRAFT: Final = ("pit by p/q", "q > p", "argmax q")


def num_hypotheses(layout: Layout) -> int:
    """How many there are."""
    return len(list(_slots(layout)))


def hypotheses(scores: TokenScores, layout: Layout) -> list[Hypothesis]:
    """Every hypothesis of `layout`, tested on `scores`. p is 1 where there are too few tokens."""
    subsets: dict[str, TokenScores] = {}
    found = []
    for statistic, tokens, weight in _slots(layout):
        if tokens not in subsets:
            subsets[tokens] = scores.where(_mask(scores, tokens, layout))
        p_value, effect, z = _test(
            statistic, subsets[tokens], layout.shift, pooled=tokens == ALL or tokens in layout.cells
        )
        found.append(Hypothesis(statistic, tokens, weight, len(subsets[tokens]), p_value, effect, z))
    return found


def adjusted_p(found: Sequence[Hypothesis]) -> list[float]:
    """Holm's adjusted p-values of one run."""
    return [float(p) for p in adjusted([float(h.p_value) for h in found], [h.weight for h in found])]


def _slots(layout: Layout) -> Iterator[tuple[str, str, float]]:
    """(statistic, tokens, weight), weights summing to 1."""
    statistics = (*WITHOUT_DRAFT, *WITH_DRAFT) if layout.knows_draft else WITHOUT_DRAFT
    several = len(layout.cells) > 1
    for statistic in statistics:
        yield statistic, ALL, (0.5 if several else 0.8) / len(statistics)
    if several:
        of_cell = [name for name in statistics if name != "across requests"]
        for cell in layout.cells:
            for statistic in of_cell:
                yield statistic, cell, 0.3 / (len(layout.cells) * len(of_cell))
    strata = [*_POSITION_BANDS, *(_OFFSETS if layout.by_offset else ())]
    in_strata = ("pit", "argmax p", "pit by p/q") if layout.knows_draft else ("pit", "argmax p")
    for name, _, _ in strata:
        for statistic in in_strata:
            yield statistic, name, 0.2 / (len(strata) * len(in_strata))


def _mask(scores: TokenScores, tokens: str, layout: Layout) -> NDArray[np.bool_]:
    if tokens == ALL:
        return np.ones(len(scores), dtype=bool)
    for name, low, high in _POSITION_BANDS:
        if tokens == name:
            return (scores.position >= low) & (scores.position < high)
    for name, low, last in _OFFSETS:
        if tokens == name:
            return (scores.pass_offset >= low) & (scores.pass_offset < (last if last is not None else 1 << 30))
    of_cell: NDArray[np.bool_] = scores.cell == layout.cells.index(tokens)
    return of_cell


def _test(statistic: str, scores: TokenScores, shift: float, *, pooled: bool) -> tuple[Floats, Floats, Floats]:
    """(p-values, effects, signed z)."""
    none = np.zeros(scores.prob.shape[:-1])
    if not len(scores):
        return none + 1.0, none, none
    if statistic.startswith("pit"):
        uniforms = {"pit": scores.pit, "pit by id": scores.id_pit, "pit by p/q": scores.ratio_pit}[statistic]
        if uniforms is None:
            raise ValueError(f"{statistic} needs the draft's law")
        effect, p_value = pit.chi_square(uniforms, most_bins=pit.NUM_BINS if pooled else _STRATUM_BINS, shift=shift)
        return p_value, effect, none
    if statistic in ("lags", "across requests"):
        effect, p_value = lags.along_request(scores) if statistic == "lags" else lags.across_requests(scores)
        return p_value, effect, none
    found = sums.surprise_sum(scores, shift) if statistic == "surprise" else _set_sum(statistic, scores, shift)
    return found.p_value, found.effect, found.z


def _set_sum(statistic: str, scores: TokenScores, shift: float) -> sums.Sum:
    if statistic == "argmax p":
        return sums.set_sum(scores.is_top, scores.top_prob, shift)
    if statistic == "repeat":
        return sums.set_sum(scores.is_repeat, scores.repeat_prob, shift)
    if statistic == "end":
        return sums.set_sum(scores.is_end, scores.end_prob, shift)
    if statistic == "tail":
        return sums.set_sum(scores.is_tail, scores.tail_prob, shift)
    if (
        scores.is_gain is None
        or scores.gain_prob is None
        or scores.is_draft_top is None
        or scores.draft_top_prob is None
    ):
        raise ValueError(f"{statistic} needs the draft's law")
    if statistic == "q > p":
        return sums.set_sum(scores.is_gain, scores.gain_prob, shift)
    return sums.set_sum(scores.is_draft_top, scores.draft_top_prob, shift)
