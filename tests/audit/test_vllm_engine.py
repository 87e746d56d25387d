"""vLLM in process, with a stand-in of its interface: what is passed on, what is a refusal, what is a failure."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from draftproof import SamplingParams
from draftproof.audit.engine import EngineError, Refusal, Request
from draftproof.audit.vllm_engine import VLLMEngine


class VLLMValidationError(Exception):
    """As vLLM's: no ValueError."""


class FakeLLM:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[tuple[list[int], dict[str, Any]]] = []

    def generate(self, prompts: list[dict[str, Any]], params: list[Any], use_tqdm: bool) -> list[Any]:
        if self.error is not None:
            raise self.error
        self.asked += [(p["prompt_token_ids"], q) for p, q in zip(prompts, params, strict=True)]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[5, 6], text="")]) for _ in prompts]


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def sampling_params(**given: Any) -> dict[str, Any]:
        if "dry_multiplier" in given:
            raise TypeError("unexpected keyword argument 'dry_multiplier'")
        return given

    module = ModuleType("vllm")
    module.SamplingParams = sampling_params  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)


def test_fields_go_by_their_names_and_seeds_with_them() -> None:
    llm = FakeLLM()
    params = SamplingParams(temperature=0.5, stop_token_ids=[3], logit_bias={2: 1.0}, max_tokens=7)
    [generation] = VLLMEngine(llm).generate([Request((1, 2), params, 9)])
    expected = {"temperature": 0.5, "stop_token_ids": [3], "logit_bias": {2: 1.0}, "max_tokens": 7, "seed": 9,
                "detokenize": False}  # fmt: skip
    assert generation.token_ids == (5, 6) and llm.asked == [([1, 2], expected)]
    VLLMEngine(llm, seeded=False).generate([Request((1,), SamplingParams(), 9)])
    assert "seed" not in llm.asked[-1][1]


@pytest.mark.parametrize("error", [ValueError("no"), VLLMValidationError("no"), NotImplementedError("no")])
def test_what_vllm_refuses_is_a_refusal(error: Exception) -> None:
    with pytest.raises(Refusal, match="no"):
        VLLMEngine(FakeLLM(error)).generate([Request((1,), SamplingParams(), 1)])


def test_an_unknown_field_is_a_refusal_and_a_crash_is_not() -> None:
    with pytest.raises(Refusal, match="dry_multiplier"):
        VLLMEngine(FakeLLM()).generate([Request((1,), SamplingParams(dry_multiplier=0.5), 1)])
    with pytest.raises(EngineError, match="RuntimeError: dead"):
        VLLMEngine(FakeLLM(RuntimeError("dead"))).generate([Request((1,), SamplingParams(), 1)])
