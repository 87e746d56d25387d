"""vLLM in process under audit: its `LLM.generate`, speculation as the LLM was made with.

    engine = VLLMEngine(vllm.LLM(model, speculative_config={...}))

Prompts go in as token ids. vLLM has SamplingParams' names, so each field that isn't at its default is passed on by its
name; what vLLM doesn't know, or says that it doesn't do with speculation, is a refusal. Requests of a batch are in
flight at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any, Final

from draftproof import SamplingParams
from draftproof.audit.engine import EngineError, Generation, Refusal, Request

_HERE: Final = {"seed", "detokenize", "max_tokens", "n"}


class VLLMEngine:
    """llm: a `vllm.LLM`. seeded: whether requests carry their seeds; without them vLLM draws from its own generator,
    on other paths, and the audit can't be repeated token by token.
    """

    keyed = False

    def __init__(self, llm: Any, *, name: str | None = None, seeded: bool = True) -> None:
        self._llm, self._seeded = llm, seeded
        self.name = name or f"vLLM ({'seeded' if seeded else 'unseeded'} requests)"

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        params = [self._params(request) for request in requests]
        prompts = [{"prompt_token_ids": list(request.prompt_ids)} for request in requests]
        try:
            outputs = self._llm.generate(prompts, params, use_tqdm=False)
        except Exception as error:
            if _is_refusal(error):
                raise Refusal(str(error)) from error
            raise EngineError(f"{self.name} failed with {type(error).__name__}: {error}") from error
        return [_generation(output.outputs[0]) for output in outputs]

    def _params(self, request: Request) -> Any:
        given, default = request.params, SamplingParams()
        values: dict[str, Any] = {
            item.name: getattr(given, item.name)
            for item in fields(SamplingParams)
            if item.name not in _HERE and getattr(given, item.name) != getattr(default, item.name)
        }
        values = {
            name: list(value) if isinstance(value, (tuple, frozenset)) else value for name, value in values.items()
        }
        if self._seeded:
            values["seed"] = request.seed & 0x7FFFFFFF
        try:
            return import_module("vllm").SamplingParams(
                max_tokens=given.max_tokens, detokenize=bool(given.stop), **values
            )
        except Exception as error:
            if isinstance(error, TypeError) or _is_refusal(error):
                raise Refusal(str(error)) from error
            raise


def _is_refusal(error: Exception) -> bool:
    """Whether vLLM said no to a parameter: a ValueError, or in later versions an error of its own that is none."""
    return isinstance(error, (ValueError, NotImplementedError)) or type(error).__name__ == "VLLMValidationError"


def _generation(completion: Any) -> Generation:
    return Generation(tuple(int(i) for i in completion.token_ids), text=completion.text or None)
