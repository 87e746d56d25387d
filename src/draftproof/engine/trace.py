"""The audit trail: one JSON line per verified position, enough to replay the decision by hand.

Fields: request_id, seed, sample_index, noise_layout, verifier, position (absolute), node, drafted_id,
emitted_id, outcome, target_prob and draft_prob (of the drafted token), emitted_prob (of the
emitted one under the target's law), noise {purpose, position, index, value}. value is the coin
u of a ratio test, or the emitted token's 32-bit word of the field that the draw raced on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from draftproof.core import Decision, Draft, Key, Law, Outcome, PointMass, Purpose, Verdict
from draftproof.engine.request import Request
from draftproof.errors import ParameterError
from draftproof.noise import LAYOUT_VERSION, KeyedNoise
from draftproof.verify.base import Row


class TraceWriter:
    """Writes the decisions of every committed pass to a text stream, a line each, flushed per pass."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, request: Request, draft: Draft, laws: Sequence[Row], verdict: Verdict, num_kept: int) -> None:
        """laws: the target's rows for `draft`. num_kept: of the verdict's tokens, after the stop rules."""
        parents = (-1, *verdict.path)
        for parent, decision in zip(parents, verdict.decisions[:num_kept], strict=False):
            key = _key(request.verifier.name, draft, parent, decision)
            row = laws[parent + 1]
            line = {
                "request_id": request.request_id,
                "seed": request.seed,
                "sample_index": request.noise.sample_index,
                "noise_layout": LAYOUT_VERSION,
                "verifier": request.verifier.name,
                "position": decision.position,
                "node": decision.node,
                "drafted_id": decision.drafted_id,
                "emitted_id": decision.emitted_id,
                "outcome": decision.outcome.value,
                "target_prob": _float(decision.target_prob),
                "draft_prob": _float(decision.draft_prob),
                "emitted_prob": _float(row.prob(decision.emitted_id)) if isinstance(row, Law) else None,
                "noise": None if key is None else _noise(request.noise, key, decision),
            }
            self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def _key(verifier: str, draft: Draft, parent: int, decision: Decision) -> Key | None:
    if verifier == "greedy":
        return None
    if verifier == "keyed":
        return Key(Purpose.TARGET, decision.position)
    if verifier == "match":
        return Key(Purpose.MATCH, draft.start, parent + 1)
    if decision.outcome is Outcome.BONUS:
        return Key(Purpose.BONUS, draft.start)
    if verifier == "hybrid" and isinstance(draft.laws[decision.node], PointMass):
        # A ranked child is not tested: it is accepted where the residual's draw gives its token.
        return Key(Purpose.RESIDUAL, draft.start, parent + 1)
    return Key(Purpose.COIN, draft.start, decision.node)


def _noise(noise: KeyedNoise, key: Key, decision: Decision) -> dict[str, Any]:
    coin = key.purpose is Purpose.COIN
    value = noise.uniform(key) if coin else noise.word(key, decision.emitted_id)
    return {"purpose": key.purpose.name, "position": key.position, "index": key.index, "value": value}


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


@contextmanager
def opened_trace(where: TextIO | str | Path | None) -> Iterator[TraceWriter | None]:
    """A writer into the caller's own stream, or into a file opened and closed here; None for None."""
    if not isinstance(where, (str, Path)):
        yield None if where is None else TraceWriter(where)
        return
    try:
        stream = open(where, "w", encoding="utf-8")
    except OSError as error:
        raise ParameterError("trace", str(where), "a file that can be written", str(error)) from error
    with stream:
        yield TraceWriter(stream)
