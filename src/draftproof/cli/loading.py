"""From flags to an engine, and what the engine says about itself."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from draftproof import __version__
from draftproof.cli.output import sign_of_life
from draftproof.config import EngineConfig, SpeculativeConfig

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams

EMBEDDED = "embedded SmolLM2-135M-Instruct"


def open_engine(config: EngineConfig, speculative: SpeculativeConfig | None) -> LLM:
    """Loads the model, with a sign of life on stderr where that is a terminal."""
    with sign_of_life(f"loading {model_name(config)}"):
        quiet_libraries()
        from draftproof.llm import LLM

        return LLM(speculative_config=speculative, **config.to_dict())


def quiet_libraries() -> None:
    """Keeps transformers' progress bars and advice off stderr; its errors stay."""
    from huggingface_hub.utils.tqdm import disable_progress_bars
    from transformers.utils import logging

    disable_progress_bars()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]


def model_name(config: EngineConfig) -> str:
    """What was given, or the embedded model's name."""
    return EMBEDDED if config.model is None else config.model


def guarantee(llm: LLM, params: SamplingParams) -> str:
    """The verifier that runs and what it promises: "keyed: replay"."""
    from draftproof.verify import get_verifier

    verifier = get_verifier(verifier_name(llm, params))
    return f"{verifier.name}: {verifier.guarantee}"


def verifier_name(llm: LLM, params: SamplingParams) -> str:
    """The verifier that runs: greedy is keyed's case of temperature 0."""
    name = llm.speculative_config.verifier if llm.speculative_config else "keyed"
    return "greedy" if name == "keyed" and params.is_greedy else name


def settings(llm: LLM, params: SamplingParams) -> dict[str, Any]:
    """What the output depends on, as plain values, for --json."""
    from dataclasses import asdict

    from draftproof.noise import LAYOUT_VERSION
    from draftproof.verify import get_verifier

    verifier = get_verifier(verifier_name(llm, params))
    return {
        "model": model_name(llm.config),
        "dtype": str(llm.target.dtype).removeprefix("torch."),
        "device": str(llm.target.device),
        "invariant": bool(getattr(llm.target, "invariant", False)),
        "invariant_width": llm.config.invariant_width,
        "max_model_len": llm.target.max_model_len,
        "chain": llm.config.chain,
        "chain_dtype": llm.config.chain_dtype,
        "chain_printed": str(llm.chain),
        "verifier": verifier.name,
        "guarantee": verifier.guarantee,
        "noise_layout": LAYOUT_VERSION,
        "speculative_config": llm.speculative_config.to_dict() if llm.speculative_config else None,
        "sampling_params": asdict(params),
    }


def versions() -> dict[str, str | None]:
    """Of what decides the bits: draftproof, Python, PyTorch, transformers, and Triton if it is there."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {"draftproof": __version__, "python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy", "triton"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
