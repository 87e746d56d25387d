"""draftproof's own engine under audit, through the public API alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from draftproof import LLM, DraftproofError, GenerationFailed, ParameterError
from draftproof.audit.engine import EngineError, Generation, Refusal, Request
from draftproof.audit.models import TorchModel


class OurEngine:
    """An LLM as an engine; requests of a batch run at once as far as it has slots."""

    def __init__(self, llm: LLM, name: str | None = None) -> None:
        self.llm = llm
        speculative = llm.speculative_config
        verifier = speculative.verifier if speculative else "keyed"
        self.keyed = verifier == "keyed"
        method = f"{speculative.method}, {verifier}" if speculative else "plain"
        self.name = name or f"draftproof ({method})"

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        params = [
            replace(request.params, seed=request.seed, detokenize=bool(request.params.stop)) for request in requests
        ]
        try:
            outputs = self.llm.generate([list(request.prompt_ids) for request in requests], params)
        except ParameterError as error:
            raise Refusal(str(error)) from error
        except GenerationFailed as error:
            raise EngineError(f"{self.name} failed: {error}") from error
        except DraftproofError as error:
            raise EngineError(f"{self.name} failed: {error}") from error
        return [_generation(output.outputs[0]) for output in outputs]

    def target_model(self) -> TorchModel:
        """The target, for the scorer. Raises ParameterError for a target that is no PyTorch model."""
        model = getattr(self.llm.target, "model", None)
        if model is None:
            raise ParameterError("model", type(self.llm.target).__name__, "a target with a PyTorch model to score with")
        return TorchModel(model, vocab_size=self.llm.target.vocab_size, num_positions=self.llm.target.max_model_len)


def _generation(completion: Any) -> Generation:
    starts, begins = [], True
    for index, outcome in enumerate(completion.outcomes):
        if begins:
            starts.append(index)
        begins = outcome != "accepted"
    logprobs = completion.logprobs
    return Generation(
        tuple(completion.token_ids),
        pass_starts=tuple(starts),
        logprobs=None if logprobs is None else tuple(float(entry.own.logprob) for entry in logprobs),
        text=completion.text,
    )
