"""Tokens of probability 0: a finding, unless rounding explains them.

A filter's edge moves with the logits: where the engine's may differ from the scorer's by e, a token whose own logit,
raised by 4 e (2 e for itself against the others, twice for the mass that top-p sums up), is in the law again stands at
an edge, and is counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftproof.audit.engine import Generation, Request
from draftproof.audit.scorer import Scorer


def split_impossible(
    scorer: Scorer,
    requests: Sequence[Request],
    generations: Sequence[Generation],
    places: Sequence[tuple[int, int]],
    logit_error: float,
) -> tuple[list[tuple[int, int]], int]:
    """(places that no rounding explains, how many stand at an edge). places: (request, output position)."""
    if logit_error == 0:
        return list(places), 0
    left = [place for place in places if not _at_edge(scorer, requests, generations, place, 4 * logit_error)]
    return left, len(places) - len(left)


def _at_edge(
    scorer: Scorer,
    requests: Sequence[Request],
    generations: Sequence[Generation],
    place: tuple[int, int],
    rise: float,
) -> bool:
    index, position = place
    request, output = requests[index], generations[index].token_ids[: place[1] + 1]
    [logits] = scorer.raw_logits([request], [output])
    raised = logits.double().clone()
    raised[position, output[position]] += rise
    [probs] = scorer.laws_of([raised], [request], [output])
    return bool(probs[position, output[position]] > 0)
