"""State mode: after a rejection and a rewind, an engine in process stands where plain decoding would.

Rule: for random contexts, drafts and accepted lengths, append the context, score a draft, rewind to the accepted
length, append what was committed: logits, and the state itself where it can be read, equal those of an object that
was given the committed tokens alone, within `tolerance`. Lengths run over every boundary of `block`, and several passes
follow each other, some without a draft. Sees: keys and values that were not cut, recurrent states that were not
restored (T58, T59), positions that moved (T62).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from draftproof import ParameterError
from draftproof.audit.gather import Progress
from draftproof.audit.verdict import Audit, Finding, decide

_MOST_LISTED: Final = 12
_PASSES: Final = 3


class Stateful(Protocol):
    """One sequence in an engine: made empty, appended to, and taken back from."""

    @property
    def vocab_size(self) -> int: ...

    def append(self, token_ids: Sequence[int]) -> np.ndarray:
        """Appends tokens and returns [n, V] logits, row i of the token after token i."""
        ...

    def rewind(self, num_tokens: int) -> None:
        """Keeps the first `num_tokens` of everything that was appended."""
        ...

    def state(self) -> Mapping[str, np.ndarray]:
        """What is cached, by name; {} if it can't be read: then logits decide alone."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial. passes: (draft, how many of it were accepted, the token after them)."""

    context: tuple[int, ...]
    passes: tuple[tuple[tuple[int, ...], int, int], ...]


def audit_state(
    make: Callable[[], Stateful],
    *,
    name: str = "engine",
    num_trials: int = 64,
    longest_context: int = 24,
    longest_draft: int = 7,
    block: int = 16,
    tolerance: float = 1e-4,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Audits objects that `make` returns, empty ones.

    tolerance: of logits and states, absolute. Raises ParameterError.
    """
    if num_trials < 1 or longest_draft < 1 or longest_context < 1 or tolerance < 0:
        raise ParameterError("num_trials", num_trials, "1 or more, with contexts and drafts of 1 or more")
    random = np.random.default_rng(seed)
    began, findings, worst, error, done = time.perf_counter(), [], {"logits": 0.0}, "", 0
    try:
        vocab_size = make().vocab_size
        for number in range(num_trials):
            trial = _trial(random, vocab_size, longest_context, longest_draft, block, number)
            differences = run_trial(make, trial)
            for part, size in differences.items():
                worst[part] = max(worst.get(part, 0.0), size)
            bad = {part: size for part, size in differences.items() if not size <= tolerance}
            if bad:
                part = max(bad, key=lambda key: bad[key])
                findings.append(Finding("the state after a rewind is not plain decoding's", _where(trial, part), 0.0,
                                        bad[part], "absolute difference"))  # fmt: skip
            done += 1
            if progress is not None:
                progress(done, num_trials)
    except KeyboardInterrupt:
        error = "Ctrl-C"
    numbers: dict[str, Any] = {"trials": done, "trials that differ": len(findings), "tolerance": tolerance}
    numbers |= {f"largest difference, {part}": size for part, size in worst.items()}
    return Audit(
        mode="state",
        engine=name,
        verdict=decide(findings, complete=done == num_trials),
        summary=error or f"{len(findings)} of {done} trials differ",
        findings=tuple(findings[:_MOST_LISTED]),
        numbers=numbers,
        limits=("the law: a right state may still be sampled wrongly",),
        reproduction=None if not findings else f"# {findings[0].where}\n",
        settings={"longest_context": longest_context, "longest_draft": longest_draft, "block": block, "seed": seed},
        seconds=time.perf_counter() - began,
    )


def run_trial(make: Callable[[], Stateful], trial: Trial) -> dict[str, float]:
    """The largest difference of logits, and of each part of the state, after every pass of `trial`."""
    speculating, plain = make(), make()
    worst: dict[str, float] = {}
    committed = list(trial.context)
    _note(worst, "logits", speculating.append(committed)[-1:], plain.append(committed)[-1:])
    for draft, num_accepted, following in trial.passes:
        if draft:
            speculating.append(draft)
            speculating.rewind(len(committed) + num_accepted)
        added = (*draft[:num_accepted], following)
        right = plain.append(added)[-1:]
        committed += added
        _note(worst, "logits", speculating.append([following])[-1:], right)
        expected = plain.state()
        for part, value in speculating.state().items():
            _note(worst, part, value, expected[part])
    return worst


def _trial(
    random: np.random.Generator, vocab_size: int, longest_context: int, longest_draft: int, block: int, number: int
) -> Trial:
    length = int(random.integers(1, longest_context + 1))
    if number % 3 == 0:
        # Every third context ends at a block's edge, or next to it.
        length = max(1, block * max(1, length // block) + number % 5 - 2)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(map(int, random.integers(0, vocab_size, size)))

    passes = []
    for index in range(_PASSES):
        size = 0 if (number + index) % 4 == 3 else int(random.integers(1, longest_draft + 1))
        passes.append((tokens(size), int(random.integers(0, size + 1)), tokens(1)[0]))
    return Trial(tokens(length), tuple(passes))


def _note(worst: dict[str, float], part: str, one: np.ndarray, other: np.ndarray) -> None:
    if one.shape != other.shape:
        worst[part] = float("inf")
        return
    difference = float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))
    # NaN compares false with everything, and is a difference.
    worst[part] = max(worst.get(part, 0.0), difference if difference == difference else float("inf"))


def _where(trial: Trial, part: str) -> str:
    passes = "; ".join(f"draft {list(draft)}, {kept} accepted, then {token}" for draft, kept, token in trial.passes)
    return f"{part}, after the context {list(trial.context)}: {passes}"
