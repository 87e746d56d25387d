"""Outputs of a rule that takes a generator, over tables whose laws are known, and short sequences' exact joint law."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from draftproof.audit.engine import EngineError
from draftproof.audit.gather import Progress
from draftproof.audit.scores import Floats, TokenScores, score_rows
from draftproof.audit.statistics import pit, sums
from draftproof.audit.statistics.needs import stats
from draftproof.audit.verdict import Finding

VOCABULARIES: Final = (3, 8, 50)
LARGE: Final = 151_936
_LARGE_CALLS: Final = 1500
_LARGE_CHUNK: Final = 8
_LENGTH: Final = 12
_NUM_DRAFT: Final = 3
_JOINT_LENGTH: Final = 3

Check = Callable[[Any, int], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Sampled:
    """scores: of all tokens, a cell for each vocabulary. sequences: the first tokens of each output over 3 tokens after
    the prompt 0, with their exact joint_law. large_p_values: of the large row's tests. findings: excluded tokens.
    """

    scores: TokenScores
    sequences: list[tuple[int, ...]]
    joint_law: dict[tuple[int, ...], float]
    large_p_values: dict[str, float]
    findings: list[Finding]


def sample_rule(
    rule: Callable[..., Any],
    check: Check,
    num_tokens: int,
    seed: int,
    *,
    large_vocabulary: bool,
    progress: Progress | None = None,
) -> Sampled:
    """Runs `rule` with a generator until there are num_tokens, an equal share for each vocabulary."""
    own = np.random.default_rng(np.random.SeedSequence([seed, 1]))
    generator = np.random.default_rng(np.random.SeedSequence([seed, 2]))
    parts: list[TokenScores] = []
    sequences: list[tuple[int, ...]] = []
    joint_law: dict[tuple[int, ...], float] = {}
    findings: list[Finding] = []
    first_request = 0
    for cell, vocab_size in enumerate(VOCABULARIES):
        target, draft = _rows(vocab_size, seed)
        num_requests = max(num_tokens // (len(VOCABULARIES) * _LENGTH), 1)
        outputs: list[list[int]] = []
        offsets: list[int] = []
        for number in range(num_requests):
            # The joint law is that of one prompt, so over the smallest vocabulary all prompts are token 0.
            prompt = 0 if cell == 0 else number % vocab_size
            output, offset = _output(rule, check, target, draft, prompt, generator)
            outputs.append(output)
            offsets += offset
            if progress is not None:
                progress(first_request + number + 1, len(VOCABULARIES) * num_requests)
        if cell == 0:
            sequences = [tuple(output[1 : 1 + _JOINT_LENGTH]) for output in outputs]
            joint_law = _joint_law(target, 0)
        contexts = np.array([token for output in outputs for token in output[:-1]])
        ids = np.array([token for output in outputs for token in output[1:]])
        scores = score_rows(
            target[contexts],
            ids,
            own,
            draft_probs=draft[contexts],
            request=np.repeat(np.arange(num_requests) + first_request, _LENGTH),
            cell=np.full(len(ids), cell),
            position=np.tile(np.arange(_LENGTH), num_requests),
            pass_offset=np.array(offsets),
        )
        for index in np.flatnonzero(scores.prob <= 0)[:3]:
            where = f"V = {vocab_size}, after token {contexts[index]}: token {ids[index]}"
            findings.append(Finding("a token that the target excludes", where, 0.0, 1.0, "tokens"))
        parts.append(scores)
        first_request += num_requests
    large = _large(rule, check, own, generator) if large_vocabulary else {}
    return Sampled(TokenScores.joined(parts), sequences, joint_law, large, findings)


def joint_p_value(sequences: Sequence[tuple[int, ...]], law: Mapping[tuple[int, ...], float]) -> float:
    """Chi-square of sequences against their exact law; cells that expect fewer than 5 are pooled.

    0 if one is excluded.
    """
    counts = Counter(sequences)
    if any(law.get(sequence, 0.0) <= 0 for sequence in counts):
        return 0.0
    expected = np.array([probability * len(sequences) for probability in law.values()])
    observed = np.array([counts.get(sequence, 0) for sequence in law], dtype=np.float64)
    large = expected >= 5
    cells = [(observed[large], expected[large])]
    if (~large).any() and expected[~large].sum() > 0:
        cells.append((observed[~large].sum(keepdims=True), expected[~large].sum(keepdims=True)))
    seen, due = np.concatenate([o for o, _ in cells]), np.concatenate([e for _, e in cells])
    if len(due) < 2:
        return 1.0
    return float(stats().chi2.sf(((seen - due) ** 2 / due).sum(), len(due) - 1))


def _rows(vocab_size: int, seed: int) -> tuple[Floats, Floats]:
    """Rows [V, V] with some excluded tokens; drafts partly unlike the target."""
    random = np.random.default_rng(np.random.SeedSequence([seed, 3, vocab_size]))
    target = random.dirichlet(np.full(vocab_size, 0.7), size=vocab_size)
    draft = 0.5 * target + 0.5 * random.dirichlet(np.ones(vocab_size), size=vocab_size)
    if vocab_size > 3:
        for row in range(0, vocab_size, 2):
            target[row, (row + 1) % vocab_size] = 0.0
    return target / target.sum(1, keepdims=True), draft


def _output(
    rule: Callable[..., Any], check: Check, target: Floats, draft: Floats, prompt: int, generator: np.random.Generator
) -> tuple[list[int], list[int]]:
    """([prompt, then tokens], each token's offset in its pass)."""
    text = [prompt]
    offsets: list[int] = []
    vocab_size = len(target)
    while len(text) <= _LENGTH:
        path, drafts = text[-1], []
        rows, laws = [target[path]], []
        for _ in range(_NUM_DRAFT):
            law = draft[path]
            path = int(generator.choice(vocab_size, p=law))
            drafts.append(path)
            laws.append(law)
            rows.append(target[path])
        emitted = check(_call(rule, np.array(rows), np.array(laws), drafts, generator), _NUM_DRAFT)
        if any(not 0 <= token < vocab_size for token in emitted):
            raise EngineError(f"the rule emitted {list(emitted)} and the vocabulary has {vocab_size} tokens")
        text += emitted
        offsets += range(len(emitted))
    return text[: _LENGTH + 1], offsets[:_LENGTH]


def _call(rule: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return rule(*arguments)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(f"the rule failed with {type(error).__name__}: {error}") from error


def _joint_law(target: Floats, prompt: int) -> dict[tuple[int, ...], float]:
    law = {}
    for sequence in itertools.product(range(len(target)), repeat=_JOINT_LENGTH):
        probability, context = 1.0, prompt
        for token in sequence:
            probability *= float(target[context, token])
            context = token
        law[sequence] = probability
    return law


def _large(
    rule: Callable[..., Any], check: Check, own: np.random.Generator, generator: np.random.Generator
) -> dict[str, float]:
    """p-values over one row of a real vocabulary's size, whose tail reaches 22 nats below its best token."""
    gaps = np.minimum(np.log1p(np.arange(LARGE)) * 1.9, 22.0)
    weights = np.exp(-gaps)
    order = np.random.default_rng(7).permutation(LARGE)
    target = np.empty(LARGE)
    target[order] = weights / weights.sum()
    draft = np.roll(target, 1) * 0.5 + target * 0.5
    ends = draft.cumsum()
    ids = []
    for _ in range(_LARGE_CALLS):
        drafted = min(int(np.searchsorted(ends, generator.random() * ends[-1], side="right")), LARGE - 1)
        ids.append(check(_call(rule, np.stack([target, target]), draft[None], [drafted], generator), 1)[0])
    parts = []
    for start in range(0, len(ids), _LARGE_CHUNK):
        chunk = np.array(ids[start : start + _LARGE_CHUNK])
        rows = np.broadcast_to(target, (len(chunk), LARGE))
        parts.append(score_rows(rows, chunk, own, draft_probs=np.broadcast_to(draft, rows.shape)))
    scores = TokenScores.joined(parts)
    _, by_p = pit.chi_square(scores.pit)
    _, by_ratio = pit.chi_square(scores.pit if scores.ratio_pit is None else scores.ratio_pit)
    tail = sums.set_sum(scores.is_tail, scores.tail_prob)
    return {
        f"positions by p, V = {LARGE}": float(by_p),
        f"positions by p/q, V = {LARGE}": float(by_ratio),
        f"tail, V = {LARGE}": float(tail.p_value),
    }
