"""Wrong drafters: tokens drawn from one law, another one handed to the test; lengths that look."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from draftproof.audit.mutants.sampler import Drafted, ExactSampler, Ids, residual, sample
from draftproof.audit.scores import Floats


class ArgmaxDraft(ExactSampler):
    """The most probable token is drafted and the softmax law claimed."""

    name: ClassVar[str] = "argmax drafts with softmax q"
    after: ClassVar[str] = "T01: jaymody/speculative-sampling#3, z-lab/dflash#74, huggingface/transformers#30778"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        return np.asarray(law.argmax(-1))


class FilteredDraw(ExactSampler):
    """Drawn after top-k, the raw law claimed."""

    name: ClassVar[str] = "filtered draws with raw q"
    after: ClassVar[str] = "T02: huggingface/transformers#47932"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        edge = np.sort(law, -1)[:, -3][:, None]
        return sample(np.where(law >= edge, law, 0.0), random)


class SharpenedClaim(ExactSampler):
    """Drawn at temperature 1, the law at temperature 0.7 claimed."""

    name: ClassVar[str] = "q claimed at another temperature"
    after: ClassVar[str] = "T32: NVIDIA/TensorRT-LLM#19390; T05's family: draw and claim differ"

    def claimed(self, laws: Floats, token_ids: Ids) -> Floats:
        sharp = laws ** (1 / 0.7)
        return np.asarray(sharp / sharp.sum(-1, keepdims=True))


class CoarseClaim(ExactSampler):
    """Drawn from probabilities rounded to 3 bits, the exact ones claimed: a low-precision draft head."""

    name: ClassVar[str] = "draw and claim in different precision"
    after: ClassVar[str] = "T05: deepseek-ai/DeepSpec#31"

    def draw_draft(self, law: Floats, random: np.random.Generator, index: int, state: dict[str, Any]) -> Ids:
        logits = np.log(np.maximum(law, 1e-12))
        return sample(np.exp(np.round(logits * 2) / 2), random)


class ShiftedClaim(ExactSampler):
    """Each node is tested with the law of the node before it."""

    name: ClassVar[str] = "q rows shifted by one"
    after: ClassVar[str] = "T17: NVIDIA/TensorRT-LLM#15098, on the draft's side"

    def claimed(self, laws: Floats, token_ids: Ids) -> Floats:
        return np.concatenate([laws[:, :1], laws[:, :-1]], 1)


class OneHotClaim(ExactSampler):
    """Sampled drafts treated as certain: q = 1 at the token, and the residual loses the token alone."""

    name: ClassVar[str] = "sampled drafts claimed as one-hot, without removing the token"
    after: ClassVar[str] = "T10's family: SafeAILab/EAGLE#183; n-gram law for a sampled draft"

    def claimed(self, laws: Floats, token_ids: Ids) -> Floats:
        return np.asarray(np.arange(laws.shape[-1]) == token_ids[..., None], dtype=np.float64)

    def recover(
        self, target: Floats, draft: Floats, rejected: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> Ids:
        return sample(target, random)


class PeekingLength(ExactSampler):
    """The chain is cut before the first token whose own probability is low; the rest is decoded plainly."""

    name: ClassVar[str] = "length that looked at the dropped token"
    after: ClassVar[str] = "T09: ggml-org/llama.cpp#22506 with #27694, ikawrakow/ik_llama.cpp#1820"

    def test(self, drafted: Drafted, rows: Floats, random: np.random.Generator, state: dict[str, Any]) -> Any:
        own = np.take_along_axis(drafted.laws, drafted.token_ids[..., None], -1)[..., 0]
        state["cut"] = np.logical_or.accumulate(own < 0.2, axis=1)
        return super().test(drafted, rows, random, state) & ~state["cut"]

    def commit(
        self, drafted: Drafted, rows: Floats, num_accepted: Ids, random: np.random.Generator, state: dict[str, Any]
    ) -> tuple[Ids, Ids]:
        emitted, counts = super().commit(drafted, rows, num_accepted, random, state)
        batch = np.arange(len(num_accepted))
        node = np.minimum(num_accepted, drafted.token_ids.shape[1] - 1)
        # A cut position draws from the target: nothing was drafted there, it says.
        is_cut = (num_accepted < drafted.token_ids.shape[1]) & state["cut"][batch, node]
        plain = sample(rows[batch, node], random)
        emitted[batch, num_accepted] = np.where(is_cut, plain, emitted[batch, num_accepted])
        return emitted, counts


class RankedSiblings(ExactSampler):
    """Two ranked candidates for each position, tested by ratios as if they had been sampled."""

    name: ClassVar[str] = "ranked candidates tested as samples"
    after: ClassVar[str] = "T07: apple/ml-recurrent-drafter#6, ggml-org/llama.cpp examples/speculative (#5625)"

    def step(self, contexts: Ids, random: np.random.Generator, state: dict[str, Any]) -> tuple[Ids, Ids]:
        left, draft = self.target[contexts], self.drafting[contexts].copy()
        ranks = np.argsort(-draft, axis=1)[:, :2]
        batch = np.arange(len(contexts))
        found = np.full(len(contexts), -1)
        for index in range(2):
            token = ranks[:, index]
            passes = random.random(len(contexts)) * draft[batch, token] < left[batch, token]
            found = np.where((found < 0) & passes, token, found)
            left = residual(left, draft)
            left = left / left.sum(-1, keepdims=True)
            draft[batch, token] = 0.0
            draft = draft / np.maximum(draft.sum(-1, keepdims=True), 1e-300)
        found = np.where(found < 0, sample(left, random), found)
        return found[:, None], np.ones(len(contexts), dtype=np.int64)


MUTANTS = (
    ArgmaxDraft,
    FilteredDraw,
    SharpenedClaim,
    CoarseClaim,
    ShiftedClaim,
    OneHotClaim,
    PeekingLength,
    RankedSiblings,
)
