"""The audit: find out whether any engine is lossless.

    from draftproof.audit import Scorer, TorchModel, audit_scored

    audit = audit_scored(engine, Scorer(TorchModel(model)), prompts, num_tokens=100_000)
    audit.verdict, audit.findings, audit.exit_code

`engine` is a function (prompt ids, params, seed) -> token ids, or one of `OurEngine`, `TransformersEngine`,
`VLLMEngine` and `EndpointEngine`. docs/reading-an-audit.md says how to read what comes out, and what no audit can see.
Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Audit": "verdict",
    "EndpointEngine": "endpoint",
    "Engine": "engine",
    "EngineError": "engine",
    "Finding": "verdict",
    "Generation": "engine",
    "OurEngine": "ours",
    "Refusal": "engine",
    "Request": "engine",
    "Scorer": "scorer",
    "TableModel": "models",
    "TorchModel": "models",
    "TransformersEngine": "assisted",
    "VLLMEngine": "vllm_engine",
    "Verdict": "verdict",
    "audit_greedy": "greedy",
    "audit_paired": "paired",
    "audit_replay": "replay",
    "audit_rule": "rule",
    "audit_scored": "scored",
    "audit_state": "state",
    "audit_steps": "rule",
    "make_plan": "plan",
    "run_self": "selftest",
    "sampler_matrix": "matrix",
    "write_page": "page",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"draftproof.audit.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'draftproof.audit' has no attribute {name!r}; its names are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return list(__all__)
