"""The verification kernels against the time of one read of the logits, on this machine's GPU.

Run: PYTHONPATH=src python -m benchmarks.verify [--out FILE.json] [--shapes 64x15x151936 8x7x151936]
[--filters none top-p] [--changes none tenth]

Work: from bf16 logits [B (γ + 1), V], T = 0.8 and the named filters to emitted tokens, under `keyed`. Logits: normal,
standard deviation 2, and 50 random tokens a row raised by up to 10. Drafts: accepted none of the way and half of it, or
what `--accepted` says; their tokens up to there are the rows' own, and the next is another. Time: median over replays
of a CUDA graph, the L2 cache overwritten before each. Floor: the logits read once, at this run's copy bandwidth (bytes
read and written).
Beside them the eager loop: the same work by PyTorch's own operations, filters by a sort, and the race on the result.
Changes: penalties, bias and masks as `benchmarks.verify_changes` describes them, with the time over that of the same
rows unchanged; what was accepted is the same.
Refuses to run while the GPU tests of the kernels fail, or the kernels draw other tokens than the float64 reference
does, near ties excepted, or accept another number than was drafted for. The tests are run first, unless `--tested`
names the report (pytest --junitxml) of a run of them that has passed since the kernels were last written.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

import draftproof
from benchmarks import verify_changes
from draftproof.kernels import KeyedKernel, Requests, Rows, draw, reference
from draftproof.params import SamplingParams

FILTERS = {
    "none": SamplingParams(temperature=0.8),
    "top-p": SamplingParams(temperature=0.8, top_p=0.95),
    "top-k, top-p": SamplingParams(temperature=0.8, top_k=20, top_p=0.95),
    "min-p": SamplingParams(temperature=0.8, min_p=0.05),
    "greedy": SamplingParams(temperature=0),
}
START = 100
TESTS = ["tests/gpu/test_kernels.py", "tests/gpu/test_changes_keyed.py"]
NOT_PASSED = ("failure", "error", "skipped")
SHAPES = ["1x7x151936", "1x15x151936", "8x7x151936", "32x7x151936", "64x3x151936", "64x15x151936", "8x7x32000"]


def main() -> int:
    """Prints a table, writes JSON. Exit code 1 if the kernels are wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, help="requests x draft length x vocabulary")
    parser.add_argument("--filters", nargs="+", default=list(FILTERS), choices=list(FILTERS))
    parser.add_argument("--accepted", nargs="+", type=float, default=[0.0, 0.5], help="shares of a draft, 0 to 1")
    parser.add_argument("--changes", nargs="+", default=list(verify_changes.KINDS), choices=list(verify_changes.KINDS))
    parser.add_argument("--tested", type=Path, help="the report of the tests' last run")
    parser.add_argument("--out", type=Path, default=Path("out/verify.json"))
    options = parser.parse_args()
    if not all(0 <= share <= 1 for share in options.accepted):
        parser.error(f"--accepted: got {options.accepted}, allowed are shares of 0 to 1")
    if not torch.cuda.is_available():
        print("benchmarks.verify needs a CUDA GPU, and torch finds none", file=sys.stderr)
        return 2
    if not (tests_pass() if options.tested is None else has_passed(options.tested)):
        print("the kernels' tests fail, or their report is none of them: nothing is timed", file=sys.stderr)
        return 1
    wrong = num_wrong(151936)
    for changes in options.changes:
        kind = verify_changes.KINDS[changes]
        for name in options.filters if kind is not None else ():
            if sys.stderr.isatty():
                print(f"checking {name} with changes {changes} against the reference", file=sys.stderr)
            wrong += verify_changes.num_wrong(logits_of(64, 151936, seed=1), FILTERS[name], kind, START)
    if wrong:
        print(f"{wrong} tokens differ from the reference's: nothing is timed", file=sys.stderr)
        return 1
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    bandwidth = copy_bandwidth(flush)
    results = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "draftproof": draftproof.__version__,
        "copy_bytes_per_second": bandwidth,
        "rows": [],
    }
    print(f"{results['device']}, copy {bandwidth / 1e12:.2f} TB/s")
    head = f"{'B':>3} {'γ':>3} {'V':>7} {'filters':<14} {'changes':<10} {'accepted':>8} {'µs':>8} {'floor':>7} "
    print(f"{head}{'ratio':>6} {'over none':>9} {'eager':>8}")
    for shape in options.shapes:
        num_requests, length, vocab_size = map(int, shape.split("x"))
        logits = logits_of(num_requests * (length + 1), vocab_size)
        floor_us = logits.numel() * 2 / bandwidth * 1e6
        for name in options.filters:
            unchanged: dict[int, float] = {}
            eager_us = eager_time(logits, FILTERS[name], flush)
            for changes in options.changes:
                for accepted in sorted({round(share * length) for share in options.accepted}):
                    us = verify_us(
                        logits, FILTERS[name], num_requests, length, accepted, verify_changes.KINDS[changes], flush
                    )
                    if us is None:
                        print(f"{shape} {name} {changes}: not {accepted} accepted: not timed", file=sys.stderr)
                        return 1
                    if changes == "none":
                        unchanged[accepted] = us
                    over = us / unchanged[accepted] if accepted in unchanged else None
                    row = {"B": num_requests, "gamma": length, "V": vocab_size, "filters": name, "changes": changes}
                    row |= {"accepted": accepted, "us": us, "floor_us": floor_us, "over_unchanged": over}
                    results["rows"].append({**row, "eager_us": eager_us if changes == "none" else None})
                    print(
                        f"{num_requests:>3} {length:>3} {vocab_size:>7} {name:<14} {changes:<10} {accepted:>8} "
                        f"{us:>8.1f} {floor_us:>7.1f} {us / floor_us:>6.2f} "
                        f"{f'{over:.3f}' if over else '-':>9} {f'{eager_us:.1f}' if changes == 'none' else '-':>8}",
                        flush=True,
                    )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    options.out.with_suffix(".svg").write_text(plot(results["rows"], results["device"]), encoding="utf-8")
    print(json.dumps({"out": str(options.out), "num_rows": len(results["rows"])}))
    return 0


def tests_pass() -> bool:
    """Runs the kernels' tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode == 0


def has_passed(report: Path) -> bool:
    """Whether a report of pytest's, later than the kernels' last change, says that all of their tests have passed."""
    kernels = Path(draftproof.__file__).parent / "kernels"
    if report.stat().st_mtime < max(file.stat().st_mtime for file in kernels.rglob("*.py")):
        return False
    cases = list(ElementTree.parse(report).iter("testcase"))
    run = {case.get("classname", "").replace(".", "/") + ".py" for case in cases}
    return run >= set(TESTS) and not any(len(case.findall(name)) for case in cases for name in NOT_PASSED)


def verify_us(
    logits: torch.Tensor,
    params: SamplingParams,
    num_requests: int,
    length: int,
    accepted: int,
    kind: verify_changes.Kind | None,
    flush: torch.Tensor,
) -> float | None:
    """Microseconds of `verify_keyed` where the first `accepted` of `length` drafted tokens are accepted; None if
    another number is."""
    vocab_size = logits.shape[1]
    blank = Rows.of_drafts([START] * num_requests, [[0] * length] * num_requests, device="cuda")
    if kind is None:
        requests, given = Requests.of([params] * num_requests, range(num_requests), device="cuda"), {}
        drafts = drafts_of(own_tokens(logits, params, num_requests, length), accepted, vocab_size)
        kernel = KeyedKernel(logits, blank, vocab_size)
    else:
        changed = verify_changes.changed(logits, params, num_requests, kind)
        requests, given = changed.requests, {"allowed": changed.allowed, "changes": changed.changes}
        kernel = KeyedKernel(logits, blank, vocab_size, num_exceptions=changed.changes.num_exceptions(blank))
        drafts = verify_changes.drafts_accepted(kernel, logits, changed, num_requests, length, accepted, START)
    rows = Rows.of_drafts([START] * num_requests, drafts, device="cuda")
    call = partial(kernel, logits, rows, requests, **given)
    return graph_us(call, flush) if bool((call().num_accepted == accepted).all()) else None


def eager_time(logits: torch.Tensor, params: SamplingParams, flush: torch.Tensor) -> float:
    """Microseconds of `eager`."""
    generator = torch.Generator("cuda").manual_seed(0)
    drafted = torch.zeros(len(logits), dtype=torch.int32, device="cuda")
    return graph_us(partial(eager, logits, params, drafted, generator), flush, 10, captured=False)


def own_tokens(logits: torch.Tensor, params: SamplingParams, num_requests: int, length: int) -> list[list[int]]:
    """[requests][length + 1] what each row of a draft that starts at START draws."""
    count = length + 1
    starts = [START + index % count for index in range(num_requests * count)]
    rows = Rows.of_drafts(starts, [[]] * len(starts), device="cuda")
    requests = Requests.of(
        [params] * len(starts), [index // count for index in range(len(starts))], device="cuda"
    )  # a draft's rows have their request's seed
    return draw(logits, rows, requests)[0].view(num_requests, count).tolist()


def drafts_of(own: list[list[int]], accepted: int, vocab_size: int) -> list[list[int]]:
    """Drafts of one token less than `own` has, whose first `accepted` tokens are the rows' own; the others aren't."""
    return [[*row[:accepted], *((token + 1) % vocab_size for token in row[accepted:-1])] for row in own]


def eager(
    logits: torch.Tensor, params: SamplingParams, drafted: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """[rows] whether each row's token is the one drafted after it, by PyTorch's own operations."""
    if params.temperature == 0:
        return logits.argmax(dim=-1) == drafted
    law = (logits.float() / params.temperature).softmax(dim=-1)
    if params.min_p > 0:
        law = law * (law >= params.min_p * law.amax(dim=-1, keepdim=True))
    if params.top_k > 0 or params.top_p < 1:
        ranked, ids = law.sort(dim=-1, descending=True)
        if params.top_k > 0:
            ranked[:, params.top_k :] = 0
        before = ranked.cumsum(dim=-1) - ranked
        ranked = ranked * (before < params.top_p * ranked.sum(dim=-1, keepdim=True))
        law = torch.zeros_like(law).scatter_(1, ids, ranked)
    noise = torch.empty_like(law).exponential_(generator=generator)
    return (law / noise).argmax(dim=-1) == drafted


def logits_of(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    """[num_rows, vocab_size] bf16 logits on the GPU."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    logits = torch.randn(num_rows, vocab_size, device="cuda", generator=generator) * 2
    raised = torch.randint(0, vocab_size, (num_rows, 50), device="cuda", generator=generator)
    logits.scatter_add_(1, raised, torch.rand(num_rows, 50, device="cuda", generator=generator) * 10)
    return logits.bfloat16()


def num_wrong(vocab_size: int) -> int:
    """How many of 64 rows' tokens under each filter are not the reference's, where its two best aren't within 1e-6."""
    logits, wrong = logits_of(64, vocab_size, seed=1), 0
    rows = Rows.of_drafts(list(range(64)), [[]] * 64, device="cuda")
    for params in FILTERS.values():
        requests = Requests.of([params] * 64, range(64), device="cuda")
        law = reference.probs(logits, rows, requests, vocab_size)
        ratios = reference.exponential(reference.field(rows, requests, vocab_size)) / law
        best = ratios.topk(2, dim=-1, largest=False)
        clear = best.values[:, 1] > best.values[:, 0] * (1 + 1e-6)
        wrong += int((clear & (draw(logits, rows, requests)[0] != best.indices[:, 0])).sum())
    return wrong


def copy_bandwidth(flush: torch.Tensor) -> float:
    """Bytes read and written per second by a copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (graph_us(lambda: target.copy_(source), flush) * 1e-6)


def graph_us(call: Callable[[], object], flush: torch.Tensor, repeats: int = 50, *, captured: bool = True) -> float:
    """Median microseconds of `call`, replayed as a CUDA graph if `captured`."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        call = graph.replay
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


def plot(rows: list[dict[str, Any]], title: str) -> str:
    """An SVG of microseconds against the floor (the line), on scales of powers of ten, 1 to 10^5."""

    def dot(x_us: float, y_us: float, colour: str, label: str) -> str:
        x, y = 60 + 100 * math.log10(x_us), 560 - 100 * math.log10(y_us)
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"><title>{label}</title></circle>'

    marks = ['<line x1="60" y1="560" x2="560" y2="60" stroke="#999"/>']
    for power in range(6):
        marks.append(f'<text x="{54 + 100 * power}" y="580">{10**power}</text>')
        marks.append(f'<text x="8" y="{564 - 100 * power}">{10**power}</text>')
    for row in rows:
        name = f"{row['B']}x{row['gamma']}, {row['filters']}, changes {row['changes']}"
        marks.append(dot(row["floor_us"], row["us"], "#1f5fa8", f"{name}: {row['us']:.1f} µs"))
        if row["eager_us"] is not None:
            marks.append(dot(row["floor_us"], row["eager_us"], "#b4531a", f"{name}, eager: {row['eager_us']:.1f} µs"))
    head = '<svg xmlns="http://www.w3.org/2000/svg" width="620" height="600" font-family="sans-serif" font-size="12">'
    text = f'<text x="60" y="24">{title}: µs (blue; eager brown) against the floor</text>'
    return head + '<rect width="100%" height="100%" fill="white"/>' + text + "".join(marks) + "</svg>\n"


if __name__ == "__main__":
    sys.exit(main())
