"""The exact output law of any verifier, by enumeration in rational arithmetic, over one pass or several.

`output_law(verifier, target, drafter, num_passes)` runs the production verifier through an `EnumeratingOracle` and
returns the law of the sequence that the passes emit, each path continued by the target's own conditionals to one
common length; `max_error(...)` compares it with the product of the target's conditionals, for every sequence. An
exact verifier's error is 0, a Fraction, not a tolerance. `enumerate_steps` does both for any step, wrong ones too.

What a path's continuation is follows from the guarantee. Under an exact-law verifier later passes use noise that nobody
has seen, XTC's coins aside, which persist: the target's conditionals, given the coins that were looked at. Under a
replay verifier the next tokens are functions of the positions' own noise, which a draft may have looked at: the
conditionals given what is known of it. Where nothing was looked at the two agree.

The state that a pass hands on is the context and what is known about every key asked so far, so noise that two passes
share is seen as shared. A pass is enumerated once for each context and each state of the keys that it asks.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from draftproof.core import ROOT, Draft, Key, Law, Noise, Purpose
from draftproof.verify.base import Verifier
from draftproof.verify.oracle import WHOLE, EnumeratingOracle, Interval
from draftproof.verify.proposals import Proposer, path_token_ids
from draftproof.verify.race import match_probability, race_joint
from draftproof.verify.tables import Context, Table

__all__ = [
    "Enumeration",
    "EnumeratingOracle",
    "Step",
    "enumerate_steps",
    "match_probability",
    "max_error",
    "output_law",
    "race_joint",
    "speculative_step",
    "target_rows",
]

Step: TypeAlias = Callable[[Context, Noise], tuple[int, ...]]
"""One pass: (context, noise) -> the tokens that it emits."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """What enumerating some passes gave.

    law: probability of each sequence of the common length. expected: the target's own.
    num_paths: random paths covered. num_replay_mismatches: paths on which plain decoding, answered by the same noise,
    emits other tokens (0 for a replay verifier; no defect of an exact-law one).
    """

    law: dict[Context, Fraction]
    expected: dict[Context, Fraction]
    num_paths: int
    num_replay_mismatches: int

    @property
    def max_error(self) -> Fraction:
        """The largest difference in the probability of one sequence."""
        return max(abs(difference) for difference in self._differences())

    @property
    def total_variation(self) -> Fraction:
        """Half the sum of the differences."""
        return sum((abs(difference) for difference in self._differences()), Fraction(0)) / 2

    def first_token_law(self) -> dict[int, Fraction]:
        """The probability of each first token that can be emitted."""
        marginal: defaultdict[int, Fraction] = defaultdict(Fraction)
        for sequence, probability in self.law.items():
            if probability:
                marginal[sequence[0]] += probability
        return dict(sorted(marginal.items()))

    def _differences(self) -> Iterator[Fraction]:
        for sequence in self.law.keys() | self.expected.keys():
            yield self.law.get(sequence, Fraction(0)) - self.expected.get(sequence, Fraction(0))


def output_law(
    verifier: Verifier, target: Table, drafter: Proposer, num_passes: int = 1, prompt: Context = (0,)
) -> dict[Context, Fraction]:
    """The law of what `num_passes` passes emit after `prompt`, continued by the target to a common length."""
    return _enumerate(verifier, target, drafter, num_passes, prompt).law


def max_error(
    verifier: Verifier, target: Table, drafter: Proposer, num_passes: int = 1, prompt: Context = (0,)
) -> Fraction:
    """The largest error of `output_law` over all sequences; exactly 0 for an exact verifier."""
    return _enumerate(verifier, target, drafter, num_passes, prompt).max_error


def _enumerate(verifier: Verifier, target: Table, drafter: Proposer, num_passes: int, prompt: Context) -> Enumeration:
    step = speculative_step(verifier, target, drafter)
    return enumerate_steps(step, target, num_passes, prompt, replay=verifier.guarantee == "replay")


def speculative_step(verifier: Verifier, target: Table, drafter: Proposer, *, telemetry: bool = False) -> Step:
    """Draft, score, verify: the pass that an engine runs."""

    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        return verifier.verify(draft, target.rows(context, draft, noise), noise, telemetry=telemetry).token_ids

    return step


def target_rows(target: Table, context: Context, draft: Draft) -> list[Law]:
    """The len(draft) + 1 rows that a verifier is given."""
    return [target.law(context + path_token_ids(draft, node)) for node in range(ROOT, len(draft))]


def enumerate_steps(
    step: Step, target: Table, num_passes: int = 1, prompt: Context = (0,), *, replay: bool = False
) -> Enumeration:
    """Enumerates `num_passes` passes of `step` after `prompt`.

    replay: the step claims to emit what plain decoding with the keys of `keyed` emits. Paths are continued with that
    noise, and compared with plain decoding on the way.
    """
    passes = _Passes(step, target if replay else None)
    stopped: _Stopped = defaultdict(Fraction)
    counts = [0, 0]

    def run(
        emitted: Context, known: dict[Key, Interval], probability: Fraction, num_left: int, mismatches: int
    ) -> None:
        if num_left == 0:
            stopped[emitted, _known_ahead(known, len(prompt + emitted), replay)] += probability
            counts[0] += 1
            counts[1] += mismatches > 0
            return
        for outcome in passes.outcomes(prompt + emitted, known):
            run(
                emitted + outcome.token_ids,
                {**known, **outcome.intervals},
                probability * outcome.probability,
                num_left - 1,
                mismatches + (not outcome.replays),
            )

    run((), {}, Fraction(1), num_passes, 0)
    return Enumeration(*_laws(target, prompt, stopped), *counts)


_Ahead: TypeAlias = tuple[tuple[int, Purpose, Interval], ...]
"""(position, purpose, what is known of it) of what persists at positions that come after the emitted tokens."""
_Stopped: TypeAlias = defaultdict[tuple[Context, _Ahead], Fraction]


def _known_ahead(known: dict[Key, Interval], end: int, replay: bool) -> _Ahead:
    # Coins persist under every verifier; the target's field is what the next tokens are drawn with under replay alone.
    purposes = (Purpose.TARGET, Purpose.XTC) if replay else (Purpose.XTC,)
    return tuple(
        sorted(
            (key.position, key.purpose, interval)
            for key, interval in known.items()
            if key.purpose in purposes and key.index == 0 and key.position >= end
        )
    )


@dataclass(frozen=True, slots=True)
class _Outcome:
    token_ids: tuple[int, ...]
    probability: Fraction
    replays: bool
    intervals: dict[Key, Interval]


class _Passes:
    """Enumerates single passes, each once for a context and a state of the keys that it asks."""

    def __init__(self, step: Step, replay_target: Table | None) -> None:
        self._step, self._replay_target = step, replay_target
        self._known: defaultdict[Context, list[tuple[dict[Key, Interval | None], list[_Outcome]]]] = defaultdict(list)

    def outcomes(self, context: Context, known: dict[Key, Interval]) -> list[_Outcome]:
        for state, outcomes in self._known[context]:
            # All paths asked these keys only: where they agree, the same paths are met again.
            if all(known.get(key) == interval for key, interval in state.items()):
                return outcomes
        oracle = EnumeratingOracle(known)
        outcomes = [
            _Outcome(path.result[0], path.probability, path.result[1], path.intervals)
            for path in oracle.paths(lambda noise: self._run(context, noise))
        ]
        self._known[context].append(({key: known.get(key) for key in oracle.asked}, outcomes))
        return outcomes

    def _run(self, context: Context, noise: Noise) -> tuple[tuple[int, ...], bool]:
        emitted = self._step(context, noise)
        if self._replay_target is None:
            return emitted, True
        plain = context
        for _ in emitted:
            plain = (*plain, self._replay_target.law_given(plain, noise).draw(noise, Key(Purpose.TARGET, len(plain))))
        return emitted, plain == context + emitted


def _laws(target: Table, prompt: Context, stopped: _Stopped) -> tuple[dict[Context, Fraction], dict[Context, Fraction]]:
    """(law, expected law) of all sequences of the longest emitted length, each path continued."""
    length = max(len(emitted) for emitted, _ in stopped)
    tokens = set(range(target.vocab_size))
    law: defaultdict[Context, Fraction] = defaultdict(Fraction)
    arriving: list[_Stopped] = [defaultdict(Fraction) for _ in range(length + 1)]
    for (emitted, ahead), mass in stopped.items():
        if set(emitted) <= tokens:
            arriving[len(emitted)][emitted, ahead] += mass
        else:
            # What was emitted outside the vocabulary has no continuation: it stands for itself.
            law[emitted] += mass
    expected: dict[Context, Fraction] = {(): Fraction(1)}
    for size in range(length):
        expected = {
            (*sequence, token): probability * target_prob
            for sequence, probability in expected.items()
            for token, target_prob in enumerate(target.probs(prompt + sequence))
            if target_prob
        }
        for (sequence, ahead), mass in arriving[size].items():
            position = len(prompt) + size
            here = {purpose: interval for at, purpose, interval in ahead if at == position}
            rest = tuple(known for known in ahead if known[0] > position)
            for weight, probs in target.cases(prompt + sequence, here.get(Purpose.XTC, WHOLE)):
                for token, share in enumerate(_shares(probs, here.get(Purpose.TARGET, WHOLE))):
                    if share:
                        arriving[size + 1][(*sequence, token), rest] += mass * weight * share
    for (sequence, _), mass in arriving[length].items():
        law[sequence] += mass
    return dict(law), expected


def _shares(probs: tuple[Fraction, ...], interval: Interval) -> tuple[Fraction, ...]:
    """[V] conditional probabilities of the tokens, given that the position's uniform lies in `interval`."""
    if interval == WHOLE:
        return probs
    low, high = interval
    ends = list(itertools.accumulate(probs))
    return tuple(
        max(min(end, high) - max(end - prob, low), Fraction(0)) / (high - low)
        for end, prob in zip(ends, probs, strict=True)
    )
