"""Invariant execution on a device: tokens with speculation on and off, and with other requests beside them.

    python -m benchmarks.gpu_replay [--device cuda] [--num-tokens 100000] [--methods dspark eagle3] [--requests 16]

The default model in bfloat16 under `invariant`, a fixed shape of `requests` times 8 tokens. Every round decodes as many
prompts together, plainly and then with a learned drafter that runs ahead of the host, in another order of the batch;
every eighth request of a method's first rounds is decoded alone, too. All token ids must be equal. Without `invariant`
the same is counted and not asked for. The last line on stdout is one JSON document; exit code 1 if a text differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.first.common import prompts
from draftproof import LLM, RequestOutput, SamplingParams
from draftproof.targets.load import load_target

DRAFTS = 7
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0}, {"temperature": 0.7}, {"temperature": 1.0, "top_p": 0.95},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9}, {"temperature": 1.0, "min_p": 0.05},
)  # fmt: skip
NUM_ALONE_ROUNDS = 2


def say(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


class Replay:
    """One target, decoded in all ways."""

    def __init__(
        self, device: str, num_requests: int, num_tokens: int, *, invariant: bool, draft_length: str = "fixed"
    ) -> None:
        self._num_requests, self._num_tokens, self._draft_length = num_requests, num_tokens, draft_length
        self._target, self._tokenizer = load_target(
            dtype="bfloat16", device=device, invariant=invariant, num_slots=num_requests,
            width=num_requests * (DRAFTS + 1), max_model_len=1024,
        )  # fmt: skip
        texts = [text for name in ("ordinary", "copy_heavy") for text in prompts(name)]
        self._prompts = [self._tokenizer(text)["input_ids"][:200] for text in texts]
        self._plain = LLM.from_target(self._target, self._tokenizer)
        self._engines: dict[str, LLM] = {}

    def round(self, number: int, method: str, *, alone: bool) -> dict[str, int]:
        """Numbers of tokens, of texts and of those that differ, together and alone, and of drafts accepted."""
        asked = [self._asked(number * self._num_requests + place) for place in range(self._num_requests)]
        expected = _texts(_generated(self._plain, asked))
        turn, engine = number % self._num_requests, self._engine(method)
        outputs = _generated(engine, asked[turn:] + asked[:turn])
        found = _texts(outputs)
        places = range(0, self._num_requests, 8) if alone else ()
        records = [output.metrics.speculative_decoding for output in outputs]
        return {
            "tokens": sum(map(len, expected)),
            "texts": len(expected),
            "different": sum(map(_differ, found, expected[turn:] + expected[:turn])),
            "alone": len(places),
            "different_alone": sum(_texts(_generated(engine, [asked[place]])) != [expected[place]] for place in places),
            "accepted": sum(record["num_accepted_draft_tokens"] for record in records),
            "passes": sum(record["num_spec_steps"] for record in records),
        }

    def _engine(self, method: str) -> LLM:
        if method not in self._engines:
            config = {"method": method, "num_speculative_tokens": DRAFTS, "draft_length": self._draft_length}
            # One drafter's taps at a time.
            self._engines = {method: LLM.from_target(self._target, self._tokenizer, speculative_config=config)}
        return self._engines[method]

    def _asked(self, number: int) -> tuple[list[int], SamplingParams]:
        params = SamplingParams(
            seed=number, max_tokens=self._num_tokens, ignore_eos=True, detokenize=False,
            **SETTINGS[number % len(SETTINGS)],
        )  # fmt: skip
        return self._prompts[number % len(self._prompts)], params


def _generated(llm: LLM, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
    return llm.generate([prompt for prompt, _ in asked], [params for _, params in asked])


def _texts(outputs: Sequence[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in outputs]


def _differ(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return first != second


def counted(replay: Replay, methods: Sequence[str], num_tokens: int) -> dict[str, Any]:
    """Rounds, the methods in turn, until so many tokens have been compared."""
    total: dict[str, Any] = {}
    number, began = 0, time.perf_counter()
    # Rounds of one method follow one another: a method's drafter takes the other's taps.
    share = num_tokens / len(methods)
    for place, method in enumerate(methods):
        first = number
        while total.get("tokens", 0) < share * (place + 1):
            found = replay.round(number, method, alone=number - first < NUM_ALONE_ROUNDS)
            total = {name: total.get(name, 0) + value for name, value in found.items()}
            number += 1
            say(f"{method}: {total} after {time.perf_counter() - began:.0f} s")
    return total | {"seconds": time.perf_counter() - began}


def main() -> int:
    """Counts with and without invariant execution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num-tokens", type=int, default=100_000)
    parser.add_argument("--methods", nargs="+", default=["dspark", "dflash"])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--draft-length", default="fixed", choices=["fixed", "auto"])
    parser.add_argument("--length", type=int, default=400, help="tokens of a text")
    parser.add_argument("--free-tokens", type=int, default=10_000, help="compared without invariant execution")
    given = parser.parse_args()
    results: dict[str, Any] = {"device": device_name(given.device), "methods": given.methods}
    for invariant, num_tokens in ((True, given.num_tokens), (False, given.free_tokens)):
        if num_tokens:
            replay = Replay(
                given.device, given.requests, given.length, invariant=invariant, draft_length=given.draft_length
            )
            results["invariant" if invariant else "free"] = counted(replay, given.methods, num_tokens)
    print(json.dumps(results))
    found = results.get("invariant", {})
    return 1 if found.get("different") or found.get("different_alone") else 0


def device_name(device: str) -> str:
    """Of a CUDA device its own."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


if __name__ == "__main__":
    sys.exit(main())
