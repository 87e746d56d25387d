"""Whole speculative steps on a CUDA device: a DFlash-shaped drafter, a Qwen3-shaped target, random weights.

    python -m benchmarks.gpu_speculative [--shape 8b] [--parts speculative batch products] [--layers N] [--cases NAMES]
        [--profile]

One step drafts, scores, verifies and commits; the host reads its tokens while the next one runs. `device` is the replay
of the step's graph, one of several in a row, `wall` the median between two steps of the whole engine, `hidden` what
of the host's work isn't hidden: wall over device, less 1. `launch` and `wait` are the host's, to ask for a step and to
wait for the one before it: what is left of `wall` is its own work.

Weights are random, so drafts are accepted by chance; a step's time does not depend on that, but a law's shape matters
to the filters: random weights give flat laws, and `peaked` multiplies their logits by 4. Bars are for one H100.
`--layers` shrinks the target (to compile its kernels, say). The last line on stdout is one JSON document; exit code 1
if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.ceilings import Ceilings, Rates, median_ms
from benchmarks.gpu_steps import SHAPES, model_of, say
from draftproof import LLM, SamplingParams
from draftproof.drafters.learned.backbone_config import backbone_config
from draftproof.drafters.learned.block_drafter import FactorisedDrafter
from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.drawing import Drawing
from draftproof.drafters.learned.head import TargetEnds
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.engine.ahead.step import AheadStep
from draftproof.sampling import SamplerChain
from draftproof.targets.extents import num_columns
from draftproof.targets.hf import HFTarget

CONTEXT, NUM_TOKENS, SLOTS = 256, 96, 32
STEP_BARS = {15: 9.5, 7: 9.2}
HIDDEN_BAR, BATCH_BAR = 0.05, 1.35
SAMPLED = {"temperature": 1.0, "top_p": 0.95}
DRAFT_LAYERS = 5
BUDGET = 2 * SLOTS * (CONTEXT + 16)
"""Tokens of a step: all prompts together, so that all requests go on together."""
IN_A_ROW = 4
LAUNCH, READ = AheadStep.launch, AheadStep.read
PEAK = 4.0

CASES: dict[str, tuple[int, int, dict[str, float], bool]] = {
    "15 drafts, T = 0": (1, 15, {"temperature": 0.0}, False),
    "15 drafts, T = 1, top-p .95, peaked": (1, 15, SAMPLED, True),
    "7 drafts, T = 0": (1, 7, {"temperature": 0.0}, False),
    "7 drafts, T = 1, top-p .95, peaked": (1, 7, SAMPLED, True),
    "15 drafts, T = 1, top-p .95, flat": (1, 15, SAMPLED, False),
    "plain, T = 0": (1, 0, {"temperature": 0.0}, False),
    "32 requests, 7 drafts, T = 0": (32, 7, {"temperature": 0.0}, False),
    "8 requests, 7 drafts, T = 0": (8, 7, {"temperature": 0.0}, False),
    "32 requests, plain, T = 0": (32, 0, {"temperature": 0.0}, False),
    "32 requests, 7 drafts, T = 1, top-p .95, peaked": (32, 7, SAMPLED, True),
}
"""Requests, drafted tokens, parameters, and whether logits are peaked."""


def drafter_of(target: HFTarget, num_drafts: int) -> FactorisedDrafter:
    """DFlash's shape: five layers as the target's, a block of one token more than it drafts, five taps."""
    config = target.model.config
    keys = config.to_dict() | {"num_hidden_layers": DRAFT_LAYERS, "layer_types": None, "model_type": "qwen3"}
    backbone = backbone_config(keys, qk_norm=True, where="random weights")
    deepest = config.num_hidden_layers
    taps = tuple(sorted({1 + place * (deepest - 1) // 5 for place in range(1, 6)}))
    layout = BlockLayout(
        method="dflash", packaging="random weights", tap_ids=taps, tap_convention="hidden_states",
        block_size=num_drafts + 1, anchor_first=False, mask_token_id=config.vocab_size - 1,
        causal=(False,) * DRAFT_LAYERS,
    )  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(3)
    with torch.device("cuda"):
        model = BlockModel(backbone, layout, config.hidden_size).to(target.dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(0.0, 0.02, generator=generator)
    return FactorisedDrafter(model, target, TargetEnds(target, None, None), Drawing(SamplerChain(), True))


class Timed:
    """Cases over one target."""

    def __init__(self, model: Any, limits: Rates, repeats: int, *, profiles: bool = False) -> None:
        self._profiles = profiles
        room = num_columns(CONTEXT + 17 * NUM_TOKENS)
        self.target = HFTarget(model, num_slots=SLOTS, max_model_len=room, max_num_cached_tokens=SLOTS * 1024)
        self._limits, self._repeats = limits, repeats
        self._num_weights = sum(parameter.numel() for parameter in model.parameters())
        self._num_products = self._num_weights - model.get_input_embeddings().weight.numel()
        self._bytes_per_key = sum(shape.num_bytes for shape in self.target._layers.shapes)

    def run(self, num_requests: int, num_drafts: int, fields: dict[str, float], peaked: bool) -> dict[str, Any]:
        """Milliseconds of a step, by its graph and by the engine's clock."""
        norm = self.target.model.model.norm.weight
        if peaked:
            norm.mul_(PEAK)
        try:
            llm = self._llm(num_drafts, peaked)
            engine = llm.engine
            clock: list[float] = []
            step = engine.step

            def timed_step() -> Any:
                turns = step()
                clock.append(time.perf_counter())
                return turns

            engine.step = timed_step  # type: ignore[method-assign]
            launches, waits = _timed("launch"), _timed("read")
            prompts = [[11 + (slot + place) % 400 for place in range(CONTEXT)] for slot in range(num_requests)]
            params = [
                SamplingParams(seed=slot, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False, **fields)
                for slot in range(num_requests)
            ]
            llm.generate(prompts, params)
            assert engine.ahead is not None
            begun = engine.ahead.num_steps
            for times in (clock, launches, waits):
                times.clear()
            outputs = llm.generate(prompts, params)
            num_steps = engine.ahead.num_steps - begun
            gaps = [after - before for before, after in zip(clock, clock[1:], strict=False)]
            # The first step caches the prompts, the last ones leave.
            wall = 1e3 * statistics.median(gaps[len(gaps) // 3 : -2])
            ahead = next(reversed(engine.ahead._steps.values()))
            device = self._device_ms(ahead)
        finally:
            AheadStep.launch, AheadStep.read = LAUNCH, READ  # type: ignore[method-assign]
            if peaked:
                norm.div_(PEAK)
        emitted = sum(len(output.outputs[0].token_ids) for output in outputs)
        floor = self._floor(num_requests, num_drafts)
        return {
            "device_ms": device,
            "wall_ms": wall,
            "hidden": wall / device - 1,
            "launch_ms": 1e3 * statistics.median(launches),
            "wait_ms": 1e3 * statistics.median(waits),
            "steps": num_steps,
            "tokens_per_step": emitted / max(num_steps, 1) / num_requests,
            "target_floor_ms": floor,
            "device_over_target_floor": device / floor,
            "parts_ms": self._parts(ahead),
            **({"longest_us": _longest(ahead)} if self._profiles else {}),
        }

    def _llm(self, num_drafts: int, peaked: bool) -> LLM:
        if num_drafts == 0:
            return LLM.from_target(self.target, None, max_num_batched_tokens=BUDGET)
        drafter = drafter_of(self.target, num_drafts)
        if peaked:
            drafter.model.norm.weight.mul_(PEAK)
        config = {"method": "dflash", "num_speculative_tokens": num_drafts, "draft_length": "fixed", "model": "random"}
        return LLM.from_target(
            self.target, None, speculative_config=config, drafter=drafter, max_num_batched_tokens=BUDGET
        )

    def _device_ms(self, step: AheadStep) -> float:
        kept = step._state.clone()

        def replay() -> None:
            step._state.copy_(kept)
            for _ in range(IN_A_ROW):
                step._graph.replay()

        return median_ms(replay, self._repeats) / IN_A_ROW

    def _parts(self, step: AheadStep) -> dict[str, float]:
        """Of the step's own calls, each captured alone."""
        newest, starts, fed, *recent = step._state.clone().unbind(0)
        tokens = torch.full((len(newest), step.width), 7, dtype=torch.int32, device="cuda")
        logits = step._forward(tokens, starts, step._source).clone()
        calls: dict[str, Callable[[], Any]] = {
            "target": lambda: step._forward(tokens, starts, step._source),
            "verification": lambda: step.draws.verify(logits, tokens[:, 1:], starts),
        }
        block = step._drafter
        if block is not None:
            drafted = logits.view(len(newest), step.width, -1)[:, 1:].contiguous()
            calls["drafter"] = lambda: block(
                newest, starts, fed, step._source, torch.stack(recent, dim=1), lambda _, first: tokens[:, 1:]
            )
            calls["draws"] = lambda: step.draws.draw(drafted, starts, 0)
        return {name: _graphed(call, self._repeats) for name, call in calls.items()}

    def _floor(self, num_requests: int, num_drafts: int) -> float:
        """Milliseconds of the target alone at the ceilings: weights, keys and values, or products."""
        num_bytes = 2 * self._num_weights + self._bytes_per_key * num_requests * CONTEXT
        flops = 2 * self._num_products * num_requests * (num_drafts + 1)
        return self._limits.floor_ms(num_bytes, flops)


def _timed(name: str) -> list[float]:
    """Seconds of each call of this method of steps, from now on."""
    call, times = getattr(AheadStep, name), []

    def timed(*given: Any) -> Any:
        began = time.perf_counter()
        found = call(*given)
        times.append(time.perf_counter() - began)
        return found

    setattr(AheadStep, name, timed)
    return times


def _longest(step: AheadStep) -> dict[str, float]:
    """Microseconds of a step by kernel, the longest sixteen."""
    from torch.profiler import ProfilerActivity, profile

    kept = step._state.clone()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(3):
            step._state.copy_(kept)
            step._graph.replay()
        torch.cuda.synchronize()
    longest = sorted(recorded.key_averages(), key=lambda entry: -entry.device_time_total)[:16]
    return {f"{entry.key[:60]} x {entry.count // 3}": entry.device_time_total / 3 for entry in longest}


def _graphed(call: Callable[[], Any], repeats: int) -> float:
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    with cuda.stream(stream):
        call()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        call()
    return median_ms(graph.replay, repeats)


def speculative(timed: Timed, names: list[str]) -> dict[str, Any]:
    """The cases asked for."""
    found: dict[str, Any] = {}
    for name in names:
        num_requests, num_drafts, fields, peaked = CASES[name]
        try:
            found[name] = entry = timed.run(num_requests, num_drafts, fields, peaked)
        except Exception as error:  # one case's failure must not cost the others' figures
            say(f"{name}: {type(error).__name__}: {str(error)[:300]}")
            found[name] = {"error": str(error)[:300], "holds": False}
            continue
        if num_requests == 1 and num_drafts:
            entry["bar_ms"] = STEP_BARS[num_drafts]
            entry["holds"] = entry["wall_ms"] <= STEP_BARS[num_drafts]
        else:
            entry["holds"] = entry["hidden"] <= HIDDEN_BAR
        say(f"{name}: " + json.dumps(_rounded(entry)))
    return found


def products(shape: str, limits: Rates, repeats: int) -> dict[str, Any]:
    """Microseconds of a layer's matrix products over 256 tokens, by way of calling them, and their floor."""
    sizes = SHAPES[shape]
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    weights = {
        "q, k, v": (hidden, 6144), "out": (4096, hidden), "gate, up": (hidden, 2 * inner), "down": (inner, hidden),
        "logits": (hidden, 151936),
    }  # fmt: skip
    generator = torch.Generator("cuda").manual_seed(1)
    found: dict[str, Any] = {}
    for name, (num_in, num_out) in weights.items():
        weight = torch.randn(num_out, num_in, generator=generator, device="cuda").bfloat16()
        for count in (16, 64, 256):
            tokens = torch.randn(count, num_in, generator=generator, device="cuda").bfloat16()
            halves = tokens.chunk(2)
            ways: dict[str, Callable[[], Any]] = {
                "linear": lambda x=tokens, w=weight: torch.nn.functional.linear(x, w),
                "transposed": lambda x=tokens, w=weight: w @ x.t(),
                "halves": lambda h=halves, w=weight: [torch.nn.functional.linear(x, w) for x in h],
            }
            entry = {way: 1e3 * _cold(call, weight, repeats) for way, call in ways.items()}
            for library in ("cublas", "cublaslt"):
                torch.backends.cuda.preferred_blas_library(library)
                entry[library] = 1e3 * _cold(ways["linear"], weight, repeats)
            torch.backends.cuda.preferred_blas_library("default")
            entry["floor"] = 1e3 * limits.floor_ms(2 * weight.numel(), 2 * weight.numel() * count)
            found[f"{name}, {count} tokens"] = entry
            say(f"products: {name}, {count} tokens: {json.dumps(_rounded(entry))}")
        del weight
    return found


def _cold(call: Callable[[], Any], weight: torch.Tensor, repeats: int) -> float:
    """Milliseconds of one call in a graph of ten that each find the cache full of other things."""
    cuda: Any = torch.cuda
    other = torch.empty(64 << 20, dtype=torch.int8, device="cuda")

    def flushed() -> None:
        for _ in range(10):
            other.zero_()
            call()

    def flushes() -> None:
        for _ in range(10):
            other.zero_()

    del cuda, weight
    return max(_graphed(flushed, repeats) - _graphed(flushes, repeats), 0.0) / 10


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return round(value, 4) if isinstance(value, float) else value


def main() -> int:
    """Runs the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=[name for name in SHAPES if name != "tiny"])
    parser.add_argument("--parts", nargs="+", default=["speculative", "products"], choices=["speculative", "products"])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--profile", action="store_true", help="the longest kernels of each case's step")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device here")
    torch.set_grad_enabled(False)
    if given.layers is not None:
        SHAPES[given.shape]["num_hidden_layers"] = given.layers
    limits = Ceilings().rested
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "layers": SHAPES[given.shape]["num_hidden_layers"],
        "copy_tb_per_s": limits.bytes / 1e9,
        "product_tflops": limits.flops / 1e9,
    }
    say(str(results))
    if "speculative" in given.parts:
        timed = Timed(model_of(given.shape), limits, given.repeats, profiles=given.profile)
        results["speculative"] = speculative(timed, given.cases)
        torch.cuda.empty_cache()
    if "products" in given.parts:
        results["products"] = products(given.shape, limits, given.repeats)
    print(json.dumps(results))
    return 0 if all(entry["holds"] for entry in results.get("speculative", {}).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
