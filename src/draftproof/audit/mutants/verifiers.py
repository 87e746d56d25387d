"""Wrong verifiers: tests, residuals and bonus tokens that break the law."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from draftproof.audit.mutants.sampler import Drafted, ExactSampler, Ids, at, residual, sample
from draftproof.audit.scores import Floats


class ResidualIsTarget(ExactSampler):
    """A rejected token is replaced by a draw from the target."""

    name: ClassVar[str] = "residual replaced by the target"
    after: ClassVar[str] = "T04: asked in NJUNLP/MCSD#5"

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        return sample(target, random)


class ResidualSoftmax(ExactSampler):
    """The residual goes through a softmax."""

    name: ClassVar[str] = "residual through softmax"
    after: ClassVar[str] = "T03: huggingface/transformers#28508"

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        return sample(np.exp(residual(target, draft)), random)


class ResidualAtToken(ExactSampler):
    """q is subtracted at the rejected token only."""

    name: ClassVar[str] = "residual subtracts at the drafted token only"
    after: ClassVar[str] = "T04: xLLM-AI/xllm#2175"

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        batch = np.arange(len(rejected))
        left = target.copy()
        left[batch, rejected] = np.maximum(left[batch, rejected] - draft[batch, rejected], 0.0)
        return sample(left, random)


class ResidualArgmax(ExactSampler):
    """The replacement is the residual's argmax: one greedy token a step."""

    name: ClassVar[str] = "one greedy token per step, after a rejection"
    after: ClassVar[str] = "T19: Luce-Org PR 374"

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        return np.asarray(residual(target, draft).argmax(-1))


class GreedyBonus(ExactSampler):
    """The bonus token is the argmax."""

    name: ClassVar[str] = "one greedy token per step, the bonus"
    after: ClassVar[str] = "T19: argmax bonus after full acceptance"

    def bonus(self, law: Floats, random: np.random.Generator, state: dict[str, Any]) -> Ids:
        return np.asarray(law.argmax(-1))


class GreedyFirst(ExactSampler):
    """The first token after the prompt is the argmax."""

    name: ClassVar[str] = "greedy first token after the prompt"
    after: ClassVar[str] = "T19: Luce-Org PR 374"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        if state["pass"] == 0:
            return self.target[contexts].argmax(-1)[:, None], np.ones(len(contexts), dtype=np.int64)
        return super().step(contexts, random, state)


class GreedySeed(ExactSampler):
    """The first token of each pass is the target's argmax, whatever was drafted."""

    name: ClassVar[str] = "greedy token that seeds each pass"
    after: ClassVar[str] = "T19: Luce-Org PR 374"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        seed = self.target[contexts].argmax(-1)
        emitted, counts = super().step(seed, random, state)
        joined = np.concatenate([seed[:, None], emitted], 1)[:, : self.num_draft + 1]
        return joined, np.minimum(counts + 1, self.num_draft + 1)


class TypicalAcceptance(ExactSampler):
    """A draft is kept if its probability is above a threshold: a lossy mode that calls itself lossless."""

    name: ClassVar[str] = "typical acceptance"
    after: ClassVar[str] = "T66: vllm-project/vllm#5131"

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        law = rows[:, :-1]
        entropy = -(law * np.log(np.maximum(law, 1e-300))).sum(-1)
        return np.asarray(at(law, drafted.token_ids) > np.minimum(0.3, 0.8 * np.exp(-entropy)))


class ScaledRatio(ExactSampler):
    """The ratio is multiplied, so that more is accepted: a leniency that was meant for benchmarks."""

    name: ClassVar[str] = "acceptance ratio raised by 1.3"
    after: ClassVar[str] = "T66: huggingface/transformers' assistant_ensemble_weight, SGLang's acceptance thresholds"

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        coins = random.random(drafted.token_ids.shape)
        return coins * at(drafted.laws, drafted.token_ids) < 1.3 * at(rows[:, :-1], drafted.token_ids)


class FirstUnchecked(ExactSampler):
    """The first draft is accepted unseen."""

    name: ClassVar[str] = "first draft never checked"
    after: ClassVar[str] = "T18: ohdearquant/lattice#243"

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        passes = super().test(drafted, rows, random, state)
        passes[:, 0] = True
        return passes


class HypotheticalCount(ExactSampler):
    """As many drafts are committed as pass their tests, past a rejection too."""

    name: ClassVar[str] = "hypothetical acceptance count committed"
    after: ClassVar[str] = "T20g: openinfer-project #534, FlashInfer's accepted counter"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        drafted = self.draft(contexts, random, state)
        rows = self.rows(drafted)
        counts = self.test(drafted, rows, random, state).sum(1)
        return self.commit(drafted, rows, counts, random, state)


class RowsLate(ExactSampler):
    """The target's rows are sliced one late."""

    name: ClassVar[str] = "logits sliced one row late"
    after: ClassVar[str] = "T17: NVIDIA/TensorRT-LLM#15098"

    def rows(self, drafted: Drafted) -> Floats:
        right = super().rows(drafted)
        return np.concatenate([right[:, 1:], right[:, -1:]], 1)


class Uncapped(ExactSampler):
    """Block verification whose running product is not capped at 1."""

    name: ClassVar[str] = "block test uncapped"
    after: ClassVar[str] = "HSD's public code (2601.05724); sequential-speculative-decoding 0.1.1"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        drafted = self.draft(contexts, random, state)
        rows = self.rows(drafted)
        ratios = at(rows[:, :-1], drafted.token_ids) / np.maximum(at(drafted.laws, drafted.token_ids), 1e-300)
        passes = random.random(ratios.shape) < ratios.cumprod(1)
        last = ratios.shape[1] - passes[:, ::-1].argmax(1)
        return self.commit(drafted, rows, np.where(passes.any(1), last, 0), random, state)


class SharedRace(ExactSampler):
    """One exponential field draws the draft and its replacement."""

    name: ClassVar[str] = "draft and residual share one race"
    after: ClassVar[str] = "T08: vllm-project/vllm#47386, #54282"
    instance: ClassVar[str] = "T08"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        field = random.exponential(size=law.shape)
        state[f"field {index}"] = field
        return np.asarray((field / np.maximum(law, 1e-300)).argmin(-1))

    def commit(
        self, drafted: Drafted, rows: Floats, num_accepted: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> tuple[Ids, Ids]:
        state["node"] = np.minimum(num_accepted, self.num_draft - 1)
        return super().commit(drafted, rows, num_accepted, random, state)

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        fields = np.stack([state[f"field {index}"] for index in range(self.num_draft)], 1)
        field = fields[np.arange(len(rejected)), state["node"]]
        return np.asarray((field / np.maximum(residual(target, draft), 1e-300)).argmin(-1))


class CoinSeesDraft(ExactSampler):
    """The accept coin is the uniform that drew the draft."""

    name: ClassVar[str] = "draft's uniform reused for the accept coin"
    after: ClassVar[str] = "T08: the accept coin must not see the draft's noise"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        state[f"uniform {index}"] = random.random(len(law))
        return sample(law, random, state[f"uniform {index}"])

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        coins = np.stack([state[f"uniform {index}"] for index in range(self.num_draft)], 1)
        return coins * at(drafted.laws, drafted.token_ids) < at(rows[:, :-1], drafted.token_ids)


class ResidualSeesCoin(ExactSampler):
    """The replacement is drawn with the coin of the rejection, as if it were fresh."""

    name: ClassVar[str] = "accept coin reused for the residual"
    after: ClassVar[str] = "vllm-project/vllm-ascend PR 16370"

    def test(
        self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]
    ) -> NDArray[np.bool_]:
        state["coins"] = random.random(drafted.token_ids.shape)
        return np.asarray(state["coins"] * at(drafted.laws, drafted.token_ids) < at(rows[:, :-1], drafted.token_ids))

    def commit(
        self, drafted: Drafted, rows: Floats, num_accepted: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> tuple[Ids, Ids]:
        node = np.minimum(num_accepted, self.num_draft - 1)
        state["coin"] = state["coins"][np.arange(len(node)), node]
        return super().commit(drafted, rows, num_accepted, random, state)

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        return sample(residual(target, draft), random, state["coin"])


MUTANTS = (
    ResidualIsTarget,
    ResidualSoftmax,
    ResidualAtToken,
    ResidualArgmax,
    GreedyBonus,
    GreedyFirst,
    GreedySeed,
    TypicalAcceptance,
    ScaledRatio,
    FirstUnchecked,
    HypotheticalCount,
    RowsLate,
    Uncapped,
    SharedRace,
    CoinSeesDraft,
    ResidualSeesCoin,
)
