"""Wrong engines: temperature, seeds, noise and state that go wrong around a right rule."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from draftproof.audit.mutants.sampler import Drafted, Emission, ExactSampler, Ids, sample
from draftproof.audit.scores import Floats


class WarmTarget(ExactSampler):
    """The verified rows are at temperature 1.1."""

    name: ClassVar[str] = "verified rows at another temperature"
    after: ClassVar[str] = "T32: NVIDIA/TensorRT-LLM#19390, vllm-project/vllm#27077"

    def rows(self, drafted: Drafted) -> Floats:
        warm = super().rows(drafted) ** (1 / 1.1)
        return np.asarray(warm / warm.sum(-1, keepdims=True))


class SeedsCollide(ExactSampler):
    """Every two requests share one generator: the second repeats the first's noise."""

    name: ClassVar[str] = "unseeded requests share a seed"
    after: ClassVar[str] = "T51: NVIDIA/TensorRT-LLM#19487"

    def run(self, num_requests: int, length: int, seed: int) -> Emission:
        random = np.random.default_rng(seed)
        uniforms = np.repeat(random.random(((num_requests + 1) // 2, length)), 2, axis=0)[:num_requests]
        prompts = np.arange(num_requests) % self.vocab_size
        contexts, tokens = prompts, np.zeros((num_requests, length), dtype=np.int64)
        for position in range(length):
            contexts = tokens[:, position] = sample(self.target[contexts], random, uniforms[:, position])
        return Emission(tokens, prompts, np.zeros_like(tokens))


class NoiseRepeats(ExactSampler):
    """Plain draws whose uniform is redrawn at every second token only."""

    name: ClassVar[str] = "one uniform for two tokens in a row"
    after: ClassVar[str] = "T52's family: a position's noise met twice"

    def run(self, num_requests: int, length: int, seed: int) -> Emission:
        random = np.random.default_rng(seed)
        prompts = np.arange(num_requests) % self.vocab_size
        contexts, tokens = prompts, np.zeros((num_requests, length), dtype=np.int64)
        uniforms = random.random(num_requests)
        for position in range(length):
            if position % 2 == 0:
                uniforms = random.random(num_requests)
            contexts = tokens[:, position] = sample(self.target[contexts], random, uniforms)
        return Emission(tokens, prompts, np.zeros_like(tokens))


class DraftsRepeat(ExactSampler):
    """The draft's generator starts again in every pass, of each request alike."""

    name: ClassVar[str] = "drafts repeat in each pass"
    after: ClassVar[str] = "T50's family: vllm-project/vllm#6038; ratio tests need noise that is fresh in every pass"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        fixed = state.setdefault(f"fixed {index}", {})
        missing = [row for row in state["rows"] if row not in fixed]
        fixed.update(zip(missing, random.random(len(missing)), strict=True))
        return sample(law, random, np.array([fixed[row] for row in state["rows"]]))


class CoinsRepeat(ExactSampler):
    """The coins' generator starts again in every pass."""

    name: ClassVar[str] = "coins repeat in each pass"
    instance: ClassVar[str] = "far"
    after: ClassVar[str] = "T50's family: vllm-project/vllm#51226; ratio tests need noise that is fresh in every pass"

    def test(self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]) -> Any:
        fixed = state.setdefault("coins", {})
        missing = [row for row in state["rows"] if row not in fixed]
        fixed.update(zip(missing, random.random((len(missing), self.num_draft)), strict=True))
        coins = np.stack([fixed[row] for row in state["rows"]])
        own = np.take_along_axis(drafted.laws, drafted.token_ids[..., None], -1)[..., 0]
        target = np.take_along_axis(rows[:, :-1], drafted.token_ids[..., None], -1)[..., 0]
        return coins * own < target


class StaleContext(ExactSampler):
    """After a rejection the target's cache still holds the rejected token: the next pass's first row is its row."""

    name: ClassVar[str] = "cache not rewound after a rejection"
    after: ClassVar[str] = "T58: lablup/mlxcel#994, vllm-project/vllm#9730"

    def commit(
        self, drafted: Drafted, rows: Floats, num_accepted: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> tuple[Ids, Ids]:
        emitted, counts = super().commit(drafted, rows, num_accepted, random, state)
        node = np.minimum(num_accepted, self.num_draft - 1)
        rejected = np.where(num_accepted < self.num_draft, drafted.token_ids[np.arange(len(node)), node], -1)
        state.setdefault("stale", {}).update(zip(state["rows"], rejected, strict=True))
        return emitted, counts

    def rows(self, drafted: Drafted) -> Floats:
        right = super().rows(drafted)
        stale = self._stale
        first = np.where(stale >= 0, stale, drafted.contexts[:, 0])
        right[:, 0] = self.target[first]
        return right

    def draft(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> Drafted:
        kept = state.setdefault("stale", {})
        self._stale = np.array([kept.get(row, -1) for row in state["rows"]])
        return super().draft(contexts, random, state)


class CoarseRace(ExactSampler):
    """A Gumbel race with uniforms of 6 bits: what stands 4 nats below the best never wins (24 bits: 17 nats)."""

    name: ClassVar[str] = "race with uniforms of too few bits"
    after: ClassVar[str] = "T13's family: 24-bit uniforms, vllm-project/vllm PR 51367"
    instance: ClassVar[str] = "tail"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        law = self.target[contexts]
        uniforms = (np.floor(random.random(law.shape) * 64) + 0.5) / 64
        winners = (-np.log(uniforms) / np.maximum(law, 1e-300)).argmin(-1)
        return winners[:, None], np.ones(len(contexts), dtype=np.int64)


class LowTarget(ExactSampler):
    """The target's probabilities are rounded to sixteenths before the draw: a cumulative sum in low precision."""

    name: ClassVar[str] = "cumulative sum in low precision"
    after: ClassVar[str] = "algorithms: inverse transform with a bfloat16 cumulative sum"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        ends = np.round(self.target[contexts].cumsum(-1) * 16) / 16
        rounded = np.diff(ends, axis=-1, prepend=0.0)
        return sample(rounded, random)[:, None], np.ones(len(contexts), dtype=np.int64)


MUTANTS = (
    WarmTarget,
    SeedsCollide,
    NoiseRepeats,
    DraftsRepeat,
    CoinsRepeat,
    StaleContext,
    CoarseRace,
    LowTarget,
)
