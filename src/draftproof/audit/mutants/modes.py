"""Wrong engines for the greedy, replay, paired and state modes, small enough to run in a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from draftproof.audit.engine import Generation, Request
from draftproof.audit.scores import Floats


@dataclass
class PlainEngine:
    """Plain decoding over rows [V, V] by the last token: one uniform for each (seed, position). The right engine."""

    rows: Floats
    name: ClassVar[str] = "exact"
    after: ClassVar[str] = ""
    keyed: ClassVar[bool] = True

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [Generation(self.output(request, index, len(requests))) for index, request in enumerate(requests)]

    def output(self, request: Request, index: int, batch_size: int) -> tuple[int, ...]:
        """The output of request `index` of a batch."""
        uniforms = self.uniforms(request, index, batch_size)
        token_ids: list[int] = []
        last = request.prompt_ids[-1]
        for position in range(request.params.max_tokens or 16):
            last = self.token(self.rows[last], uniforms[position], request, position, last)
            token_ids.append(last)
        return tuple(token_ids)

    def uniforms(self, request: Request, index: int, batch_size: int) -> Floats:
        """[max_tokens] the request's noise."""
        return np.random.default_rng(request.seed).random(request.params.max_tokens or 16)

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        """The token that follows."""
        temperature = request.params.temperature
        if temperature == 0:
            return int(row.argmax())
        ends = (row ** (1 / temperature)).cumsum()
        return int(np.searchsorted(ends, uniform * ends[-1], side="right"))


class SecondBest(PlainEngine):
    """Greedy mode: one token in 40 is the runner-up: a row compared with another row's ranks."""

    name = "a row compared with another row's ranks"
    after = "T17: ds4 project #358"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        return int(np.argsort(-row)[1]) if position % 40 == 17 else int(row.argmax())


class RatioAtZero(PlainEngine):
    """Greedy mode: at temperature 0 a draft is still accepted by ratio."""

    name = "temperature 0 without one-hot laws"
    after = "T06: jaymody/speculative-sampling#9"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        drafted = (last + 1) % len(row)
        return drafted if row[drafted] > 0.15 else int(row.argmax())


class SamplesAtZero(PlainEngine):
    """Greedy mode: temperature 0 with top_p 1 samples."""

    name = "temperature 0 that samples"
    after = "T32: Lightning-AI/litgpt#2238"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        return int(np.searchsorted(row.cumsum(), uniform * row.sum(), side="right"))


class DuplicatesToken(PlainEngine):
    """Greedy mode: a token is doubled where a pass begins."""

    name = "token duplicated at a pass's start"
    after = "T62: kekzl/imp#683, huggingface/transformers#30042"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        return last if position % 8 == 7 else int(row.argmax())


class SeedByIndex(PlainEngine):
    """Replay mode: the noise depends on where in a batch a request stands."""

    name = "seed mixed with the batch index"
    after = "T50: vllm-project/vllm#6038, #10863"

    def uniforms(self, request: Request, index: int, batch_size: int) -> Floats:
        return np.random.default_rng([request.seed, index]).random(request.params.max_tokens or 16)


class SharedGenerator(PlainEngine):
    """Replay mode: one generator for the engine, seeded when it is made."""

    name = "one generator for all requests"
    after = "T55; T50: NVIDIA/TensorRT-LLM#17599"

    def uniforms(self, request: Request, index: int, batch_size: int) -> Floats:
        if not hasattr(self, "_random"):
            self._random = np.random.default_rng(0)
        return self._random.random(request.params.max_tokens or 16)


class DraftConsumes(PlainEngine):
    """Replay mode: rejected drafts use up the stream that the target draws from."""

    name = "drafts perturb the target's stream"
    after = "T55: vllm-project/vllm#51226"

    def uniforms(self, request: Request, index: int, batch_size: int) -> Floats:
        both = np.random.default_rng(request.seed).random(2 * (request.params.max_tokens or 16))
        return np.where(both[: len(both) // 2] < 0.9, both[: len(both) // 2], both[len(both) // 2 :])


class FirstIsGreedy(PlainEngine):
    """Paired mode: the first token is the argmax."""

    name = "greedy first token, seen from outside"
    after = "T19: Luce-Org PR 374"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        return int(row.argmax()) if position == 0 else super().token(row, uniform, request, position, last)


class ColderContinuation(PlainEngine):
    """Paired mode: from the second token on the temperature is another one."""

    name = "another temperature after the first token, seen from outside"
    after = "T32: vllm-project/vllm#27077"

    def token(self, row: Floats, uniform: float, request: Request, position: int, last: int) -> int:
        sharp = row if position == 0 else row**2
        return super().token(sharp, uniform, request, position, last)


class Recurrent:
    """State mode: s' = 0.5 s + e(x), logits W s, keys and values kept by position. Rewinds from snapshots: right."""

    name: ClassVar[str] = "exact recurrent state"
    after: ClassVar[str] = ""
    vocab_size: ClassVar[int] = 11
    _WIDTH: ClassVar[int] = 6

    def __init__(self) -> None:
        random = np.random.default_rng(8)
        self._embedding = random.normal(size=(self.vocab_size, self._WIDTH))
        self._out = random.normal(size=(self._WIDTH, self.vocab_size))
        self._states = [np.zeros(self._WIDTH)]
        self._tokens: list[int] = []

    def append(self, token_ids: Sequence[int]) -> Floats:
        rows = []
        for token in token_ids:
            self._states.append(0.5 * self._states[-1] + self._embedding[token])
            self._tokens.append(token)
            rows.append((self._states[-1] + 0.01 * self._position() + 0.1 * self._attended()) @ self._out)
        return np.stack(rows)

    def rewind(self, num_tokens: int) -> None:
        del self._states[num_tokens + 1 :], self._tokens[num_tokens:]

    def state(self) -> Mapping[str, Floats]:
        return {"recurrent": self._states[-1], "keys": self._embedding[self._tokens]}

    def _position(self) -> int:
        return len(self._tokens)

    def _attended(self) -> Floats:
        mean: Floats = self._embedding[self._tokens].mean(0)
        return mean


class NotRestored(Recurrent):
    """The recurrent state stays where the rejected drafts left it."""

    name = "recurrent state not restored after a rejection"
    after = "T59: vllm-project/vllm#39273, ml-explore/mlx-lm#1109"

    def rewind(self, num_tokens: int) -> None:
        kept = self._states[-1]
        super().rewind(num_tokens)
        self._states[-1] = kept


class RestoredToStart(Recurrent):
    """The state goes back to the pass's start, and accepted tokens are lost from it."""

    name = "recurrent state restored to the pass's start"
    after = "T59: vllm-project/vllm#52942; ggml-org/llama.cpp#20080"

    def append(self, token_ids: Sequence[int]) -> Floats:
        self._start = len(self._tokens)
        return super().append(token_ids)

    def rewind(self, num_tokens: int) -> None:
        start = self._states[self._start]
        super().rewind(num_tokens)
        self._states[-1] = start


class KeysKept(Recurrent):
    """Keys of rejected tokens stay in the cache."""

    name = "keys of rejected tokens stay in the cache"
    after = "T58: lablup/mlxcel#994, ml-explore/mlx-examples#149"

    def rewind(self, num_tokens: int) -> None:
        del self._states[num_tokens + 1 :]


class CutShort(Recurrent):
    """One entry too many is cut where a whole draft was accepted."""

    name = "one entry too many cut after full acceptance"
    after = "T58: lablup/mlxcel#1002"

    def rewind(self, num_tokens: int) -> None:
        if num_tokens == len(self._tokens) and num_tokens > 1:
            self._tokens = self._tokens[:-2] + self._tokens[-1:]
        super().rewind(num_tokens)


GREEDY: tuple[type[PlainEngine], ...] = (SecondBest, RatioAtZero, SamplesAtZero, DuplicatesToken)
REPLAY: tuple[type[PlainEngine], ...] = (SeedByIndex, SharedGenerator, DraftConsumes)
PAIRED: tuple[type[PlainEngine], ...] = (FirstIsGreedy, ColderContinuation)
STATE: tuple[type[Recurrent], ...] = (NotRestored, RestoredToStart, KeysKept, CutShort)
