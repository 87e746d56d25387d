"""Engines whose sampler chain goes wrong inside a verified block, over tables of logits and the one chain.

The right engine drafts a chain by rank, computes every row through `SamplerChain` with that row's own history, and
verifies by match. A mutant changes one thing: which parameters, or which history, a row gets; or how an output ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch

from draftproof import SamplerChain, SamplingParams
from draftproof.audit.engine import Generation, Request
from draftproof.audit.scores import Floats
from draftproof.sampling import History, RowParams

EOS = 0
NUM_DRAFT = 3


@dataclass
class ChainEngine:
    """Block decoding over a table of logits [V, V] by the last token. Token 0 is EOS.

    setting: the parameters under which a mutant shows. mixed: it takes a batch of several settings.
    """

    logits: Floats
    _rows: dict[SamplingParams, RowParams] = field(default_factory=dict, repr=False)
    name: ClassVar[str] = "exact chain"
    after: ClassVar[str] = ""
    mixed: ClassVar[bool] = False
    keyed: ClassVar[bool] = False
    setting: ClassVar[SamplingParams] = SamplingParams(temperature=0.8)

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [self._one(request, self.params_of(requests, index)) for index, request in enumerate(requests)]

    def params_of(self, requests: Sequence[Request], index: int) -> SamplingParams:
        """The parameters of request `index` of a batch."""
        return requests[index].params

    def _one(self, request: Request, params: SamplingParams) -> Generation:
        random = np.random.default_rng(request.seed)
        chain = SamplerChain()
        output: list[int] = []
        starts: list[int] = []
        counted: tuple[int, ...] = ()
        most = self.limit(params)
        while not self.is_over(output, params, most):
            starts.append(len(output))
            block = self._pass(chain, request, params, tuple(output), counted, random)
            block = self.cut(block, params, len(output))[: most - len(output)]
            output += block
            counted = self.committed(counted, tuple(block))
        return Generation(tuple(output), pass_starts=tuple(starts))

    def _pass(
        self,
        chain: SamplerChain,
        request: Request,
        params: SamplingParams,
        output: tuple[int, ...],
        counted: tuple[int, ...],
        random: np.random.Generator,
    ) -> list[int]:
        """The tokens of one pass: accepted drafts and one more."""
        emitted: list[int] = []
        last = output[-1] if output else request.prompt_ids[-1]
        for index in range(NUM_DRAFT + 1):
            drafted = int(self.logits[last].argmax()) if index < NUM_DRAFT else -1
            row = self._resolved(chain, self.row_params(params, index, len(output)))
            history = self.history(request, counted, tuple(emitted))
            logits = torch.from_numpy(self.logits[last][None])
            law = chain.laws(logits, row, [history])[0].at(None, len(self.logits))
            ends = np.cumsum(np.asarray(law, dtype=np.float64))
            last = int(np.searchsorted(ends, random.random() * ends[-1], side="right"))
            emitted.append(last)
            if last != drafted:
                return emitted
        return emitted

    def _resolved(self, chain: SamplerChain, params: SamplingParams) -> RowParams:
        if params not in self._rows:
            self._rows[params] = chain.resolve(params, None, len(self.logits), (EOS,))
        return self._rows[params]

    def row_params(self, params: SamplingParams, index: int, num_output: int) -> SamplingParams:
        """The parameters of row `index` of a block."""
        return params

    def history(self, request: Request, counted: tuple[int, ...], in_block: tuple[int, ...]) -> History:
        """What a row has seen."""
        return History(request.prompt_ids, counted + in_block)

    def committed(self, counted: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
        """The counted output after a pass."""
        return counted + block

    def limit(self, params: SamplingParams) -> int:
        """The most tokens of an output."""
        return params.max_tokens or 64

    def is_over(self, output: Sequence[int], params: SamplingParams, most: int) -> bool:
        """Whether an output ends here."""
        return len(output) >= most or (bool(output) and output[-1] in _ending(params))

    def cut(self, block: list[int], params: SamplingParams, num_output: int) -> list[int]:
        """A block up to its first ending token."""
        ends = [index for index, token_id in enumerate(block) if token_id in _ending(params)]
        return block[: ends[0] + 1] if ends else block


def _ending(params: SamplingParams) -> set[int]:
    return set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})


def _on_draft_rows(field: str, neutral: Any) -> Any:
    def row_params(self: ChainEngine, params: SamplingParams, index: int, num_output: int) -> SamplingParams:
        changed: dict[str, Any] = {field: neutral}
        return replace(params, **changed) if index < NUM_DRAFT else params

    return row_params


class PenaltiesFrozen(ChainEngine):
    """Every row of a block sees the counts before the block."""

    name = "penalty state frozen over the block"
    after = "T22: sgl-project/sglang#40244, #28200"
    setting = SamplingParams(frequency_penalty=1.0, ignore_eos=True)

    def history(self, request: Request, counted: tuple[int, ...], in_block: tuple[int, ...]) -> History:
        return History(request.prompt_ids, counted)


class PenaltiesSeeLast(ChainEngine):
    """After a commit of several tokens only the last is counted."""

    name = "penalties count the last committed token only"
    after = "T23: sgl-project/sglang#33643"
    setting = SamplingParams(frequency_penalty=1.0, ignore_eos=True)

    def committed(self, counted: tuple[int, ...], block: tuple[int, ...]) -> tuple[int, ...]:
        return counted + block[-1:]


class SeedTokenMissing(ChainEngine):
    """The newest committed token is missing from the rows' history."""

    name = "seed token missing from the penalties' history"
    after = "the seed token belongs to the history; no public report"
    setting = SamplingParams(frequency_penalty=1.0, ignore_eos=True)

    def history(self, request: Request, counted: tuple[int, ...], in_block: tuple[int, ...]) -> History:
        return History(request.prompt_ids, counted[:-1] + in_block)


class PenaltiesOnFirstRow(ChainEngine):
    """Penalties act on the first row of a block only."""

    name = "repetition penalty on the first row only"
    after = "T21: mlx-node/mlx-node#11, vllm-project/vllm#18902"
    setting = SamplingParams(repetition_penalty=1.8, ignore_eos=True)

    def row_params(self, params: SamplingParams, index: int, num_output: int) -> SamplingParams:
        return params if index == 0 else replace(params, repetition_penalty=1.0)


class BiasOnBonus(ChainEngine):
    """Logit bias on the bonus row only."""

    name = "logit_bias ignored on draft rows"
    after = "T26: vllm-project/vllm#19482, sgl-project/sglang#26330"
    setting = SamplingParams(logit_bias={1: 2.0}, ignore_eos=True)
    row_params = _on_draft_rows("logit_bias", None)


class MinPOnBonus(ChainEngine):
    """min-p on the bonus row only."""

    name = "min_p on the bonus row only"
    after = "T25: vllm-project/vllm#42744, #42802"
    setting = SamplingParams(min_p=0.3, ignore_eos=True)
    row_params = _on_draft_rows("min_p", 0.0)


class TopPOnBonus(ChainEngine):
    """top-p on the bonus row only."""

    name = "top_p left out on draft rows"
    after = "T26's family: a filter that one path drops"
    setting = SamplingParams(top_p=0.7, ignore_eos=True)
    row_params = _on_draft_rows("top_p", 1.0)


class TopKOnBonus(ChainEngine):
    """top-k on the bonus row only."""

    name = "top_k left out on draft rows"
    after = "T31's family: verified rows and plain decoding with different filters"
    setting = SamplingParams(top_k=3, ignore_eos=True)
    row_params = _on_draft_rows("top_k", 0)


class TemperatureOnBonus(ChainEngine):
    """Temperature on the bonus row only."""

    name = "temperature not applied to verified rows"
    after = "T32: NVIDIA/TensorRT-LLM#19390"
    setting = SamplingParams(temperature=0.7, ignore_eos=True)
    row_params = _on_draft_rows("temperature", 1.0)


class TemperatureClamped(ChainEngine):
    """Small temperatures are raised."""

    name = "small temperatures clamped"
    after = "T32: temperatures below 0.01 raised to it, at a scale that shows"
    setting = SamplingParams(temperature=0.2, ignore_eos=True)

    def row_params(self, params: SamplingParams, index: int, num_output: int) -> SamplingParams:
        return replace(params, temperature=max(params.temperature, 0.3))


class MinTokensLate(ChainEngine):
    """min_tokens counts committed tokens, not those of the block before the row."""

    name = "min_tokens counted once for a block"
    after = "T27: vllm-project/vllm#32642, #41768"
    setting = SamplingParams(min_tokens=5, logit_bias={EOS: 3.0})

    def history(self, request: Request, counted: tuple[int, ...], in_block: tuple[int, ...]) -> History:
        return History(request.prompt_ids, counted)


class MinTokensIgnored(ChainEngine):
    """EOS may be drafted before min_tokens."""

    name = "EOS not masked on draft rows before min_tokens"
    after = "T27: vllm-project/vllm#26317, #21987"
    setting = SamplingParams(min_tokens=5)
    row_params = _on_draft_rows("min_tokens", 0)


class PastEos(ChainEngine):
    """Tokens after an EOS inside an accepted run stay in the output."""

    name = "tokens after EOS inside an accepted run"
    after = "T36: huggingface/transformers#47912, LostRuins/koboldcpp#1276"
    setting = SamplingParams()

    def cut(self, block: list[int], params: SamplingParams, num_output: int) -> list[int]:
        return block

    def is_over(self, output: Sequence[int], params: SamplingParams, most: int) -> bool:
        return len(output) >= most or EOS in output


class PastLength(ChainEngine):
    """A pass is not cut at max_tokens."""

    name = "max_tokens overrun by a pass"
    after = "T37: sgl-project/sglang#31599; T40: vllm-project/vllm#16087"
    setting = SamplingParams(ignore_eos=True)

    def limit(self, params: SamplingParams) -> int:
        return (params.max_tokens or 64) + NUM_DRAFT


class NeighboursParams(ChainEngine):
    """In a mixed batch every request gets the parameters of the one before it."""

    name = "parameters of a batch shifted by one request"
    after = "T28: vllm-project/vllm#31908; T33: jundot/omlx#1823"
    setting = SamplingParams(temperature=0.5, ignore_eos=True)
    mixed = True

    def params_of(self, requests: Sequence[Request], index: int) -> SamplingParams:
        return requests[index - 1].params


MUTANTS: tuple[type[ChainEngine], ...] = (
    PenaltiesFrozen,
    PenaltiesSeeLast,
    SeedTokenMissing,
    PenaltiesOnFirstRow,
    BiasOnBonus,
    MinPOnBonus,
    TopPOnBonus,
    TopKOnBonus,
    TemperatureOnBonus,
    TemperatureClamped,
    MinTokensLate,
    MinTokensIgnored,
    PastEos,
    PastLength,
    NeighboursParams,
)


def chain_logits(vocab_size: int = 8, seed: int = 4) -> Floats:
    """[V, V] logits around [-2, 2]: tokens like to repeat, EOS comes now and then, and is the likeliest after token
    3.
    """
    random = np.random.default_rng(seed)
    logits = random.uniform(-2, 2, (vocab_size, vocab_size))
    logits[np.arange(vocab_size), np.arange(vocab_size)] += 2.5
    logits[:, EOS] = 0.0
    logits[3, EOS] = 5.0
    return logits
