"""Step times on a CUDA device: Qwen3-shaped models with random weights, against the floor of reading them once.

    python -m benchmarks.gpu_steps [--shape 8b 4b] [--parts steps long attention kernels engine invariant] [--repeats N]

The weights are random and the drafts are arbitrary tokens: what is timed is one forward of the target, `captured` as
the replay of its graph behind others in a queue, as where steps run ahead of the host; `alone` as one replay on a
device that has waited for it; `score` as the target's own call with everything that the host does for it.
The floor is the larger of two: the weights (the embedding table included, as peers count it) and the cached keys and
values over the bandwidth of a device-to-device copy; the products' operations over the rate of an 8,192³ product.
Steps, copies and products run in turns, each for as long as the device needs to have its power under control, and
`captured` is the step's time there (`ceilings.py`). `rested_floor_ms` is the floor at the rates of a few calls after a
pause, which nothing that lasts has. The last line on stdout is one JSON document; exit code 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.ceilings import Ceilings, median, median_ms
from draftproof import LLM, SamplingParams
from draftproof.targets.base import ScoreRequest
from draftproof.targets.extents import num_columns
from draftproof.targets.hf import HFTarget

SHAPES: dict[str, dict[str, int]] = {
    "8b": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "4b": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4},
}
CONTEXT = 256
PLAIN_BAR, WIDE_BAR, LONG_BAR, HOST_BAR = 1.3, 1.35, 1.3, 0.05
INVARIANT_PLAIN_BAR, INVARIANT_STEP_BAR = 1.2, 1.05


def say(text: str) -> None:
    """Progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def queued_ms(call: Callable[[], Any], repeats: int) -> float:
    """Of the device's time, from the end of one call to that of the next, which was launched before."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 2)]
    for event in events:
        call()
        event.record()
    torch.cuda.synchronize()
    times = [first.elapsed_time(second) for first, second in zip(events[1:], events[2:], strict=False)]
    return median(times)


def model_of(name: str) -> Any:
    """Qwen3 of the shape, weights drawn on the device."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    big = name != "tiny"
    config = Qwen3Config(
        **SHAPES[name], vocab_size=151936 if big else 512, num_key_value_heads=8 if big else 2,
        head_dim=128 if big else 64, max_position_embeddings=40960, tie_word_embeddings=name == "4b",
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return Qwen3ForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


class Timed:
    """One target's steps."""

    def __init__(self, target: HFTarget, ceilings: Ceilings, repeats: int) -> None:
        self.target, self._ceilings, self._repeats = target, ceilings, repeats
        parameters = list(target.model.parameters())
        self._num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
        self._num_weights = sum(parameter.numel() for parameter in parameters) - target.model.get_input_embeddings(
        ).weight.numel()  # fmt: skip
        shapes = target._layers.shapes
        self._bytes_per_key = sum(shape.num_bytes for shape in shapes)

    def step(self, num_requests: int, num_tokens: int, parents: tuple[int, ...] | None = None) -> dict[str, float]:
        """Milliseconds of a step of so many tokens for each of so many requests, and the floors."""
        score, lengths = self._scoring(num_requests, num_tokens, parents)
        whole = median_ms(score, self._repeats)
        replay = self._replay()
        captured, rates = self._ceilings.beside(replay)
        alone = median_ms(replay, self._repeats)
        host = []
        for _ in range(self._repeats):
            torch.cuda.synchronize()
            began = time.perf_counter()
            score()
            host.append(1e3 * (time.perf_counter() - began))
        torch.cuda.synchronize()
        read = self._num_bytes + self._bytes_per_key * sum(lengths)
        computed = 2 * self._num_weights * num_requests * num_tokens
        floor, rested = rates.floor_ms(read, computed), self._ceilings.rested.floor_ms(read, computed)
        return {
            "captured_ms": captured,
            "alone_ms": alone,
            "score_ms": whole,
            "host_ms": median(host),
            "copy_tb_per_s": rates.bytes / 1e9,
            "product_tflops": rates.flops / 1e9,
            "floor_ms": floor,
            "ratio": captured / floor,
            "rested_floor_ms": rested,
            "rested_ratio": captured / rested,
        }

    def queued(self, num_requests: int, num_tokens: int) -> float:
        """Milliseconds of a step alone, behind others like it."""
        score, _ = self._scoring(num_requests, num_tokens, None)
        for _ in range(3):
            score()
        return queued_ms(self._replay(), self._repeats)

    def _scoring(
        self, num_requests: int, num_tokens: int, parents: tuple[int, ...] | None
    ) -> tuple[Callable[[], None], list[int]]:
        """A call that leaves the target as it was, and how many tokens its slots hold."""
        target = self.target
        lengths = [target.length(slot) for slot in range(num_requests)]
        requests = [ScoreRequest(slot, tuple(range(7, 7 + num_tokens)), parents) for slot in range(num_requests)]

        def score() -> None:
            target.score(requests)
            for slot, length in enumerate(lengths):
                target.rewind(slot, length)

        return score, lengths

    def _replay(self) -> Callable[[], None]:
        """Of the graph that was used last."""
        static = self.target._runner.static
        assert static is not None
        replay: Callable[[], None] = next(reversed(static._steps.values())).graph.replay
        return replay


def made(model: Any, num_slots: int, context: int, **options: Any) -> HFTarget:
    """A target whose slots hold `context` tokens each."""
    room = num_columns(context + 512)
    target = HFTarget(model, num_slots=num_slots, max_model_len=room, max_num_cached_tokens=num_slots * room, **options)
    for slot in range(num_slots):
        target.prefill(slot, [11 + (slot + place) % 400 for place in range(context)])
    return target


def steps(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """Plain and verified steps, one request and many."""
    timed = Timed(made(model, 32, CONTEXT), ceilings, repeats)
    tree = (-1, *((node - 1) // 2 for node in range(1, 46)))
    cases = {
        "plain": (1, 1, None, PLAIN_BAR),
        "8 tokens": (1, 8, None, PLAIN_BAR),
        "16 tokens": (1, 16, None, PLAIN_BAR),
        "tree of 46": (1, 46, tree, WIDE_BAR),
        "8 requests, plain": (8, 1, None, WIDE_BAR),
        "8 requests, 8 tokens": (8, 8, None, WIDE_BAR),
        "32 requests, 8 tokens": (32, 8, None, WIDE_BAR),
    }
    found: dict[str, Any] = {}
    for name, (requests, tokens, parents, bar) in cases.items():
        found[name] = timed.step(requests, tokens, parents)
        hidden = found[name]["host_ms"] <= found[name]["captured_ms"]
        found[name] |= {"bar": bar, "holds": found[name]["ratio"] <= bar and hidden}
        say(f"{name}: {found[name]}")
    return found


def invariant(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """One shape for every forward, against the shapes that are needed: one request's plain step, its step of 16 tokens,
    and a step of as many such requests as the shape has room for, which is what it is meant for and what is barred."""
    free = Timed(made(model, 8, CONTEXT), ceilings, repeats)
    cases = {"plain": (1, 1), "16 tokens": (1, 16)}
    found: dict[str, Any] = {}
    for width in (16, 32, 64, 128):
        timed = Timed(made(model, width // 16, CONTEXT, invariant=True, width=width), ceilings, repeats)
        costs = {
            name: timed.queued(*case) / free.queued(*case)
            for name, case in (cases | {"full": (width // 16, 16)}).items()
        }
        holds = costs["plain"] <= INVARIANT_PLAIN_BAR and costs["full"] <= INVARIANT_STEP_BAR
        found[f"{width} rows"] = {**costs, "holds": holds}
        say(f"invariant, {width} rows: {found[f'{width} rows']}")
    return found


def long(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """Contexts of 4,000 and 24,000 tokens."""
    found: dict[str, Any] = {}
    for context in (4096, 24000):
        timed = Timed(made(model, 1, context), ceilings, repeats)
        for tokens in (1, 16):
            name = f"{context} cached, {tokens} tokens"
            found[name] = timed.step(1, tokens)
            found[name] |= {"bar": LONG_BAR, "holds": found[name]["ratio"] <= LONG_BAR}
            say(f"{name}: {found[name]}")
    return found


def attention(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """One layer's attention, microseconds: ours, and PyTorch's over one mask, query heads stacked or not."""
    found: dict[str, Any] = {}
    for requests, tokens, context in (
        (1, 1, 256),
        (1, 16, 256),
        (8, 8, 256),
        (32, 8, 1024),
        (1, 1, 24000),
        (1, 16, 24000),
    ):
        name = f"{requests} requests, {tokens} tokens, {context} cached"
        calls = attention_calls(requests, tokens, context)
        found[name] = {side: 1e3 * replayed(call, repeats) for side, call in calls.items()}
        others = [found[name][side] for side in calls if side != "ours"]
        found[name]["floor"] = 1e3 * 2 * requests * (context + tokens) * 8 * 128 * 2 / ceilings.rested.bytes
        found[name]["holds"] = found[name]["ours"] <= min(others)
        say(f"attention: {name}: {found[name]}")
    return found


def attention_calls(requests: int, tokens: int, context: int) -> dict[str, Callable[[], Any]]:
    """The sides, over keys and values where a cache of 32 query heads and 8 key heads has them."""
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from draftproof.targets.static.attention import Attention, Shape
    from draftproof.targets.static.steps import key_bucket, round_up
    from draftproof.targets.static.tables import Bucket, Kind, Tables, plan_of

    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(2)
    length, spacing = context + tokens, context + 256
    columns = requests * spacing
    keys, values = (torch.randn(8, columns, 128, generator=generator, device=device).bfloat16() for _ in range(2))
    scored = [ScoreRequest(slot, tuple(range(tokens))) for slot in range(requests)]
    plan = plan_of(scored, [context] * requests, [slot * spacing for slot in range(requests)], 16, paths=False)
    bucket = Bucket(round_up(requests * tokens), tokens, requests, key_bucket(length), Kind.CHAIN, 0, True)
    tables = Tables(bucket, device)
    tables.fill(plan)
    query = torch.randn(bucket.num_tokens, 32, 128, generator=generator, device=device).bfloat16()
    attend = Attention(Shape(32, 8, 128, 128, None), bucket, device, invariant=False)
    strides = (spacing * 128, columns * 128, 128, 1)
    seen = [buffer.as_strided((requests, 8, length, 128), strides) for buffer in (keys, values)]
    used = query[: requests * tokens]
    stacked, heads = used.reshape(requests, 8, 4 * tokens, 128), used.reshape(requests, 32, tokens, 128)
    mask = torch.zeros(requests, 1, 4 * tokens, length, dtype=torch.bfloat16, device=device)
    return {
        "ours": lambda: attend(query, keys, values, tables, 0.1),
        "sdpa, heads stacked": lambda: sdpa(stacked, *seen, attn_mask=mask, scale=0.1),
        "sdpa, enable_gqa": lambda: sdpa(heads, *seen, attn_mask=mask[:, :, :tokens], scale=0.1, enable_gqa=True),
    }


def replayed(call: Callable[[], Any], repeats: int) -> float:
    """Milliseconds of one call among twenty in a graph."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    return median_ms(graph.replay, repeats) / 20


def kernels(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """Microseconds of a step by kernel, the longest twelve."""
    from torch.profiler import ProfilerActivity, profile

    target = made(model, 32, CONTEXT)
    found: dict[str, Any] = {}
    for num_requests, tokens in ((32, 8), (1, 16), (1, 1)):
        requests = [ScoreRequest(slot, tuple(range(7, 7 + tokens))) for slot in range(num_requests)]
        for _ in range(2):
            target.score(requests)
            for slot in range(num_requests):
                target.rewind(slot, CONTEXT)
        static = target._runner.static
        assert static is not None
        graph = next(reversed(static._steps.values())).graph
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            for _ in range(5):
                graph.replay()
            torch.cuda.synchronize()
        longest = sorted(recorded.key_averages(), key=lambda entry: -entry.device_time_total)[:12]
        name = f"{num_requests} requests, {tokens} tokens"
        found[name] = {f"{entry.key[:60]} x {entry.count // 5}": entry.device_time_total / 5 for entry in longest}
        for key, microseconds in found[name].items():
            say(f"kernels: {name}: {microseconds:.0f} us in {key}")
    return found


def engine(model: Any, ceilings: Ceilings, repeats: int) -> dict[str, Any]:
    """Plain greedy decoding through the whole engine, logits to committed tokens: milliseconds a token."""
    llm = LLM.from_target(HFTarget(model, max_model_len=1024), None)
    params = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)
    prompt = [11 + place % 400 for place in range(CONTEXT)]
    llm.generate([prompt], params)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        llm.generate([prompt], params)
        times.append(1e3 * (time.perf_counter() - began) / 48)
    say(f"engine: {sorted(times)} ms a token")
    return {"plain_ms_a_token": sorted(times)[1], "holds": True}


def main() -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "steps": steps,
        "long": long,
        "attention": attention,
        "kernels": kernels,
        "engine": engine,
        "invariant": invariant,
    }
    parser.add_argument("--shape", nargs="+", default=["8b"], choices=list(SHAPES))
    parser.add_argument("--parts", nargs="+", default=list(parts), choices=list(parts))
    parser.add_argument("--repeats", type=int, default=30)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device here")
    torch.set_grad_enabled(False)
    ceilings = Ceilings()
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "rested_copy_tb_per_s": ceilings.rested.bytes / 1e9,
        "rested_product_tflops": ceilings.rested.flops / 1e9,
    }
    say(str(results))
    holds = True
    for name in given.shape:
        model = model_of(name)
        for part in given.parts:
            results[f"{name}, {part}"] = found = parts[part](model, ceilings, given.repeats)
            holds &= all(entry.get("holds", True) for entry in found.values() if isinstance(entry, dict))
        del model
        torch.cuda.empty_cache()
    print(json.dumps(results))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
