"""Thirty mixed requests that use every parameter at least twice: speculation on = off, embedded model, float32.

Run: python -m benchmarks.request_surface [--max-tokens 24]. Under `invariant` token ids, text, endings and
log-probabilities must be the same bits, with prompt lookup, with a suffix automaton and with trees; all thirty run in
one batch. Without it the log-probabilities of tokens that agree must lie within 5e-4. Prints one JSON document last.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch

from benchmarks.first.common import machine
from draftproof import LLM, RequestOutput, SamplingParams
from draftproof.targets.load import load_target

LARGEST_GAP = 5e-4
DRAFTING: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "draft_length": "fixed"},
    "suffix": {"method": "suffix", "num_speculative_tokens": 5, "draft_length": "auto"},
    "ngram, trees": {"method": "ngram", "topology": "tree", "num_tree_nodes": 8},
}
PROMPTS = (
    "Repeat the list. apples, pears, plums, apples, pears, plums, apples, pears,",
    "Write this again: the red kettle and the blue kettle stand beside the green kettle and the red kettle.",
    "def add(a, b):\n    return a + b\n\ndef multiply(a, b):\n    return",
    "What is a lighthouse for?",
)


def favour_earlier(token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """A custom processor, a pure function: tokens of the last dozen become a little likelier."""
    recent = torch.tensor(sorted(set(token_ids[-12:])))
    logits[recent] += 0.5
    return logits


class Alternating:
    """A custom processor with a state: every other token, even ids become likelier."""

    def __init__(self, num_seen: int = 0) -> None:
        self.num_seen = num_seen

    def __call__(self, token_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        if self.num_seen % 2:
            logits[::2] += 0.3
        return logits

    def fork(self) -> Alternating:
        return Alternating(self.num_seen)

    def extended(self, token_id: int) -> Alternating:
        return Alternating(self.num_seen + 1)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    "required": ["name", "count"],
}

REQUESTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "logprobs": 3, "stop": ["\n\n"]},
    {"temperature": 0.0, "repetition_penalty": 1.2, "prompt_logprobs": 1},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "seed": 2**63 + 5},
    {"temperature": 1.2, "min_p": 0.05, "presence_penalty": 0.5, "frequency_penalty": 0.3, "seed": 0},
    {"n": 2, "temperature": 0.9, "top_p": 0.95, "logprobs": 1},
    {"n": 3, "min_tokens": 4, "max_tokens": 9, "ignore_eos": True},
    {"stop": ["a", "the"], "include_stop_str_in_output": True, "min_tokens": 3},
    {"stop_token_ids": [28, 260], "include_stop_str_in_output": True, "skip_special_tokens": False},
    {"stop_token_ids": [338], "ignore_eos": True, "detokenize": False},
    {"detokenize": False, "allowed_token_ids": list(range(200, 900)), "skip_special_tokens": False},
    {"allowed_token_ids": list(range(100, 4000)), "logit_bias": {260: -5.0, 284: 2.0}},
    {"logit_bias": {28: -100.0, 30: 1.5}, "bad_words": ["kettle", "red kettle"], "prompt_logprobs": 0},
    {"bad_words": ["pears", "apples, plums"], "presence_penalty": -0.5, "temperature": 0.4},
    {"frequency_penalty": 1.0, "repetition_penalty": 0.9, "top_k": 5},
    {"typical_p": 0.6, "logprobs": 2},
    {"typical_p": 0.9, "min_p": 0.01, "max_tokens": 7},
    {"top_n_sigma": 1.5, "temperature": 1.5},
    {"top_n_sigma": 0.8, "no_repeat_ngram_size": 3},
    {"epsilon_cutoff": 0.001, "eta_cutoff": 0.002},
    {"epsilon_cutoff": 0.02, "eta_cutoff": 0.0003, "no_repeat_ngram_size": 2},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "logprobs": 1},
    {"xtc_probability": 1.0, "xtc_threshold": 0.2},
    {"dry_multiplier": 0.8, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 64,
     "dry_sequence_breakers": ["\n", ","]},
    {"dry_multiplier": 2.0, "dry_base": 2.5, "dry_allowed_length": 3, "dry_penalty_last_n": 16,
     "dry_sequence_breakers": ["."], "temperature": 0.0},
    {"mirostat": 1, "mirostat_tau": 3.0, "mirostat_eta": 0.2},
    {"mirostat": 2, "mirostat_tau": 4.0, "mirostat_eta": 0.3, "logprobs": 1},
    {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5},
    {"dynatemp_range": 0.2, "dynatemp_exponent": 0.5, "temperature": 0.8, "logits_processors": [favour_earlier]},
    {"logits_processors": [Alternating()], "structured_outputs": {"regex": "[a-z]{2,6}( [a-z]{2,6}){2,4}\\."}},
    {"structured_outputs": {"json": SCHEMA}, "logprobs": 0},
)  # fmt: skip
"""Fields of SamplingParams; what is left out is the default, a seed, the length and one top log-probability."""


def uses() -> Counter[str]:
    """How many of REQUESTS set each field. Seed and length are set for all."""
    return Counter(name for request in REQUESTS for name in {*request, "seed", "max_tokens"})


def params_of(index: int, max_tokens: int) -> SamplingParams:
    """The parameters of request `index`."""
    return SamplingParams(**{"seed": 1000 + index, "max_tokens": max_tokens, "logprobs": 1, **REQUESTS[index]})


def run(llm: LLM, indices: Sequence[int], max_tokens: int) -> list[RequestOutput]:
    """The requests of `indices`, in one batch."""
    return llm.generate([PROMPTS[index % 4] for index in indices], [params_of(index, max_tokens) for index in indices])


def difference(found: RequestOutput, expected: RequestOutput) -> str | None:
    """What differs in what two runs returned, bit for bit; None if nothing does."""
    for one, other in zip(found.outputs, expected.outputs, strict=True):
        for name in ("token_ids", "text", "finish_reason", "stop_reason", "logprobs", "cumulative_logprob"):
            if getattr(one, name) != getattr(other, name):
                return f"sample {one.index}: {name}"
    return None if found.prompt_logprobs == expected.prompt_logprobs else "prompt_logprobs"


def largest_gap(found: RequestOutput, expected: RequestOutput) -> float:
    """The largest difference of a token's own log-probability, over the tokens before the first that differs."""
    gap = 0.0
    for one, other in zip(found.outputs, expected.outputs, strict=True):
        for mine, theirs in zip(one.logprobs or (), other.logprobs or (), strict=False):
            if mine.token_id != theirs.token_id:
                break
            gap = max(gap, abs(mine.own.logprob - theirs.own.logprob))
    for entry, its in zip(found.prompt_logprobs or (), expected.prompt_logprobs or (), strict=True):
        if entry is not None and its is not None:
            gap = max(gap, abs(entry.own.logprob - its.own.logprob))
    return gap


def measure(invariant: bool, max_tokens: int, drafting: Sequence[str]) -> dict[str, Any]:
    """Speculation on against off, with each way of drafting."""
    target, tokenizer = load_target(dtype="float32", invariant=invariant, num_slots=8)
    indices = range(len(REQUESTS))
    expected = run(LLM.from_target(target, tokenizer), indices, max_tokens)
    records: dict[str, Any] = {}
    for name in drafting:
        print(f"invariant={invariant}: {name}", file=sys.stderr)
        found = run(LLM.from_target(target, tokenizer, speculative_config=DRAFTING[name]), indices, max_tokens)
        differences = {
            str(index): what
            for index, (one, other) in enumerate(zip(found, expected, strict=True))
            if (what := difference(one, other)) is not None
        }
        records[name] = {
            "num_requests": len(found),
            "num_tokens": sum(len(completion.token_ids) for output in found for completion in output.outputs),
            "num_accepted": sum(sum(completion.from_draft) for output in found for completion in output.outputs),
            "num_different": len(differences),
            "differences": differences,
            "largest_logprob_gap": max(map(largest_gap, found, expected)),
        }
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--drafting", nargs="*", default=list(DRAFTING), choices=list(DRAFTING))
    given = parser.parse_args()
    invariant = measure(True, given.max_tokens, given.drafting)
    without = measure(False, given.max_tokens, given.drafting)
    document = {
        "machine": machine(max_tokens=given.max_tokens),
        "fields_used": dict(sorted(uses().items())),
        "invariant": invariant,
        "not_invariant": without,
        "holds": all(record["num_different"] == 0 for record in invariant.values())
        and all(record["largest_logprob_gap"] <= LARGEST_GAP for record in without.values())
        and all(uses()[item.name] >= 2 for item in fields(SamplingParams)),
    }
    print(json.dumps(document))
    raise SystemExit(0 if document["holds"] else 1)


if __name__ == "__main__":
    main()
