"""transformers' `generate` under audit: plain, with an assistant model, or with prompt lookup.

One request at a time, as assisted generation has it; the seed is set on the global generators inside a fork of them.
Parameters that `generate` doesn't have are refused; the chain to score with is the preset "hf".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import torch

from draftproof import SamplingParams
from draftproof.audit.engine import EngineError, Generation, Refusal, Request

_HONOURED: Final = {
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "min_tokens", "ignore_eos",
    "stop_token_ids", "seed", "detokenize", "skip_special_tokens",
}  # fmt: skip


class TransformersEngine:
    """model: a causal language model with `generate`. assistant: a smaller one with the same vocabulary, or None.

    prompt_lookup: drafted tokens of prompt lookup, instead of an assistant. num_draft: drafted tokens with an
    assistant; a constant schedule, and no confidence threshold. eos_token_ids: what ends an output. extra: further
    arguments.
    """

    keyed = False

    def __init__(
        self,
        model: Any,
        *,
        assistant: Any = None,
        prompt_lookup: int | None = None,
        num_draft: int = 4,
        eos_token_ids: Sequence[int] = (),
        name: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        self._model, self._assistant, self._prompt_lookup = model, assistant, prompt_lookup
        self._eos, self._extra = list(eos_token_ids), dict(extra or {})
        if assistant is not None:
            assistant.generation_config.num_assistant_tokens = num_draft
            assistant.generation_config.num_assistant_tokens_schedule = "constant"
            assistant.generation_config.assistant_confidence_threshold = 0.0
        method = "assistant" if assistant is not None else "prompt lookup" if prompt_lookup else "plain"
        self.name = name or f"transformers generate ({method})"

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        return [self._one(request) for request in requests]

    def _one(self, request: Request) -> Generation:
        arguments = self._arguments(request.params)
        ids = torch.tensor([request.prompt_ids], device=self._model.device)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(request.seed & 0x7FFFFFFFFFFFFFFF)
            try:
                output = self._model.generate(ids, attention_mask=torch.ones_like(ids), **arguments)
            except ValueError as error:
                raise Refusal(str(error)) from error
            except (RuntimeError, IndexError, TypeError) as error:
                raise EngineError(f"{self.name} failed with {type(error).__name__}: {error}") from error
        return Generation(tuple(output[0, ids.shape[1] :].tolist()))

    def _arguments(self, params: SamplingParams) -> dict[str, Any]:
        default = SamplingParams()
        unknown = [
            item.name
            for item in fields(SamplingParams)
            if item.name not in _HONOURED and getattr(params, item.name) != getattr(default, item.name)
        ]
        if unknown:
            raise Refusal(f"this adapter has no {', '.join(unknown)} of transformers' generate")
        ending = sorted({*params.stop_token_ids, *([] if params.ignore_eos else self._eos)})
        arguments: dict[str, Any] = {
            "max_new_tokens": params.max_tokens,
            "do_sample": not params.is_greedy,
            "eos_token_id": ending or None,
            "pad_token_id": 0,
            "repetition_penalty": params.repetition_penalty,
            "use_cache": True,
            **self._extra,
        }
        if not params.is_greedy:
            arguments |= {"temperature": params.temperature, "top_k": params.top_k or 0, "top_p": params.top_p}
            arguments["min_p"] = params.min_p or None
        if params.min_tokens:
            arguments["min_new_tokens"] = params.min_tokens
        if self._assistant is not None:
            arguments["assistant_model"] = self._assistant
        if self._prompt_lookup:
            arguments["prompt_lookup_num_tokens"] = self._prompt_lookup
        return arguments
