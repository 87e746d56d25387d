"""An independent, slow and obvious sampler: Python floats, a full sort, one token at a time.

Shares no code with draftproof.sampling. `law_of` follows a preset's rules as the engine's documentation states them.
"""

import math
from dataclasses import dataclass, field

NEVER = -math.inf


@dataclass
class Wanted:
    """One row's parameters at token level. The defaults switch everything off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: list[int] | None = None
    bad_words: list[list[int]] = field(default_factory=list)
    min_tokens: int = 0
    ending: list[int] = field(default_factory=list)


def normalized(scores: dict[int, float]) -> dict[int, float]:
    """The softmax of scores that may be -inf."""
    largest = max(scores.values())
    weights = {i: math.exp(z - largest) if z > NEVER else 0.0 for i, z in scores.items()}
    total = math.fsum(weights.values())
    return {i: w / total for i, w in weights.items()}


def penalized(
    logits: list[float], want: Wanted, prompt: list[int], output: list[int], window: int | None
) -> list[float]:
    """Penalties as vLLM has them (window None), or as llama.cpp and mlx have them over a window."""
    seen = prompt + output if window is None else (prompt + output)[-window:]
    counted = output if window is None else seen
    result = list(logits)
    for token_id in set(seen):
        z = result[token_id]
        z = z / want.repetition if z > 0 else z * want.repetition
        z -= want.frequency * counted.count(token_id)
        z -= want.presence if token_id in counted else 0.0
        result[token_id] = z
    return result


def min_p(law: dict[int, float], share: float) -> set[int]:
    return {i for i, p in law.items() if p >= share * max(law.values())}


def top_k(scores: dict[int, float], k: int, *, keep_ties: bool) -> set[int]:
    if k >= len(scores):
        return set(scores)
    ordered = sorted(scores, key=lambda i: (-scores[i], i))
    if not keep_ties:
        return set(ordered[:k])
    return {i for i in scores if scores[i] >= scores[ordered[k - 1]]}


def top_p(law: dict[int, float], mass: float, *, low_id_first: bool) -> set[int]:
    kept: set[int] = set()
    before = 0.0
    for i in sorted(law, key=lambda i: (-law[i], i if low_id_first else -i)):
        if kept and before >= mass:
            break
        kept.add(i)
        before += law[i]
    return kept


def law_of(
    logits: list[float], want: Wanted, prompt: list[int], output: list[int], preset: str = "vllm"
) -> dict[int, float]:
    """Token id to probability, tokens of probability 0 left out."""
    z = list(logits)
    for i, bias in want.bias.items():
        z[i] += bias
    z = penalized(z, want, prompt, output, {"llama.cpp": 64, "mlx": 20}.get(preset))
    for i in range(len(z)):
        if want.allowed is not None and i not in want.allowed:
            z[i] = NEVER
    context = prompt + output if preset == "hf" else output
    for word in want.bad_words:
        prefix = word[:-1]
        if not prefix or context[-len(prefix) :] == prefix:
            z[word[-1]] = NEVER
    if len(output) < want.min_tokens:
        for i in want.ending:
            z[i] = NEVER
    scores = dict(enumerate(z))
    if want.temperature == 0:
        return {max(scores, key=lambda i: (scores[i], -i)): 1.0}
    largest = max(scores.values())
    scores = {i: s - largest for i, s in scores.items()}
    order = {
        "vllm": ["temperature", "min_p", "top_k", "top_p"],
        "hf": ["temperature", "top_k", "top_p", "min_p"],
        "llama.cpp": ["top_k", "top_p", "min_p", "temperature"],
        "mlx": ["top_p", "min_p", "top_k", "temperature"],
    }[preset]
    for step in order:
        if step == "temperature":
            scores = {i: s / want.temperature for i, s in scores.items()}
        elif step == "min_p" and want.min_p > 0:
            kept = min_p(normalized(scores), want.min_p)
            scores = {i: s for i, s in scores.items() if i in kept}
        elif step == "top_k" and want.top_k > 0:
            # Temperature can't reorder logits, but differences may round to equal ones.
            kept = top_k({i: z[i] for i in scores}, want.top_k, keep_ties=preset in ("vllm", "hf"))
            scores = {i: s for i, s in scores.items() if i in kept}
        elif step == "top_p" and want.top_p < 1:
            kept = top_p(normalized(scores), want.top_p, low_id_first=preset in ("vllm", "llama.cpp"))
            scores = {i: s for i, s in scores.items() if i in kept}
    return {i: p for i, p in normalized(scores).items() if p > 0}
