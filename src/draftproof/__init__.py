"""draftproof: speculative decoding that cannot change what the model says, and can prove it.

Public names are loaded when first used: `import draftproof` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "ChatMessage": "chat",
    "CompletionOutput": "outputs",
    "DraftContractError": "errors",
    "DraftproofError": "errors",
    "EngineConfig": "config",
    "GenerationFailed": "outputs",
    "GenerationInterrupted": "outputs",
    "GrammarError": "errors",
    "LLM": "llm",
    "LawError": "errors",
    "Logprob": "engine.logprobs",
    "MissingExtraError": "errors",
    "ModelError": "errors",
    "ParameterError": "errors",
    "PromptError": "errors",
    "QueueFullError": "errors",
    "RequestError": "errors",
    "RequestMetrics": "outputs",
    "RequestOutput": "outputs",
    "SamplerChain": "sampling",
    "SamplingParams": "params",
    "SpeculativeConfig": "config",
    "StreamChunk": "outputs",
    "StructuredOutputsParams": "structured",
    "TokenLogprobs": "engine.logprobs",
    "TokenizerMismatchError": "errors",
    "ToolCall": "chat",
    "UnsupportedModelError": "errors",
}

if TYPE_CHECKING:
    from draftproof.chat import ChatMessage as ChatMessage
    from draftproof.chat import ToolCall as ToolCall
    from draftproof.config import EngineConfig as EngineConfig
    from draftproof.config import SpeculativeConfig as SpeculativeConfig
    from draftproof.engine.logprobs import Logprob as Logprob
    from draftproof.engine.logprobs import TokenLogprobs as TokenLogprobs
    from draftproof.errors import DraftContractError as DraftContractError
    from draftproof.errors import DraftproofError as DraftproofError
    from draftproof.errors import GrammarError as GrammarError
    from draftproof.errors import LawError as LawError
    from draftproof.errors import MissingExtraError as MissingExtraError
    from draftproof.errors import ModelError as ModelError
    from draftproof.errors import ParameterError as ParameterError
    from draftproof.errors import PromptError as PromptError
    from draftproof.errors import QueueFullError as QueueFullError
    from draftproof.errors import RequestError as RequestError
    from draftproof.errors import TokenizerMismatchError as TokenizerMismatchError
    from draftproof.errors import UnsupportedModelError as UnsupportedModelError
    from draftproof.llm import LLM as LLM
    from draftproof.outputs import CompletionOutput as CompletionOutput
    from draftproof.outputs import GenerationFailed as GenerationFailed
    from draftproof.outputs import GenerationInterrupted as GenerationInterrupted
    from draftproof.outputs import RequestMetrics as RequestMetrics
    from draftproof.outputs import RequestOutput as RequestOutput
    from draftproof.outputs import StreamChunk as StreamChunk
    from draftproof.params import SamplingParams as SamplingParams
    from draftproof.sampling import SamplerChain as SamplerChain
    from draftproof.structured import StructuredOutputsParams as StructuredOutputsParams

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"draftproof.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'draftproof' has no attribute {name!r}; its names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
