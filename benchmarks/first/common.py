"""What the parts share: prompts, the matrix of settings, engines over one target, the record of the machine."""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

import draftproof
from draftproof import LLM, SamplingParams
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.half_linear import round_weights
from draftproof.targets.hf import HFTarget
from draftproof.targets.load import load_target

PROMPTS = Path(__file__).parents[1] / "prompts"
DRAFT_LAYERS = (0, 14, 29)


def prompts(name: str) -> list[str]:
    """The prompts of benchmarks/prompts/<name>.jsonl."""
    return [json.loads(line)["prompt"] for line in (PROMPTS / f"{name}.jsonl").read_text().splitlines()]


def machine(**settings: Any) -> dict[str, Any]:
    """Versions, device and settings, to stand beside every figure."""
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ":")
    return {
        "draftproof": draftproof.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "processor": model.split(":")[1].strip() or platform.processor(),
        "threads": torch.get_num_threads(),
        **settings,
    }


def target_of(dtype: str, *, invariant: bool, num_slots: int = 1) -> tuple[HFTarget, Any]:
    """The embedded model."""
    return load_target(dtype=dtype, invariant=invariant, num_slots=num_slots)


def embedded_model(target: HFTarget) -> Any:
    """transformers' own model of the target's weights: rounded as they are, in what the target computes in."""
    model = transformers.AutoModelForCausalLM.from_pretrained(str(embedded_folder()), dtype=target.dtype).eval()
    if target.has_halves:
        round_weights(model)
    return model


def engine(target: HFTarget, tokenizer: Any, method: str | None, *, drafter: Any = None, **config: Any) -> LLM:
    """An LLM over `target`, one at a time; method None decodes plainly."""
    if method is None:
        return LLM.from_target(target, tokenizer)
    # A drafter that is handed over stands in for the one that the method would make.
    named = "ngram" if method == "draft_model" else method
    speculative = {"method": named, "num_speculative_tokens": 8, **config}
    return LLM.from_target(target, tokenizer, speculative_config=speculative, drafter=drafter)


def pruned_drafter(llm: LLM) -> DraftModelDrafter:
    """The embedded model's layers 0, 14 and 29 as a draft model."""
    draft = HFTarget(layers_of(embedded_model(llm.target), DRAFT_LAYERS), num_slots=llm.target.num_slots)
    return DraftModelDrafter(draft, llm.chain, target_tokenizer=llm.tokenizer, draft_tokenizer=llm.tokenizer)


def chat_ids(llm: LLM, prompt: str) -> list[int]:
    """A user's message, written with the chat template."""
    return llm.encode_chat([{"role": "user", "content": prompt}])


def say(text: str) -> None:
    """Progress on stderr, if somebody is looking."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def timed_tokens(llm: LLM, token_ids: list[int], params: SamplingParams) -> tuple[int, float, Any]:
    """(tokens emitted, seconds from the call to the last token, the output)."""
    began = time.perf_counter()
    output = llm.generate([token_ids], params)[0]
    return len(output.outputs[0].token_ids), time.perf_counter() - began, output
