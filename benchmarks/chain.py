"""Times the sampler chain, and the noise behind it, on rows of logits; prints one JSON document.

    PYTHONPATH=src python benchmarks/chain.py [--rows 9] [--vocab-size 49152] [--dtype float32] [--threads 2]

Two kinds of logits are timed: `peaked`, whose law has the entropy of ordinary text, and `flat`, independent
normal logits with standard deviation 3. Figures are milliseconds over `--repeats` calls, for all rows
together. Row i's history is a prompt of 512 tokens, 200 output tokens and i drafts.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch

from draftproof.core import Key, Purpose
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve

SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "no filter": SamplingParams(temperature=0.7),
    "top_p .95": SamplingParams(temperature=0.7, top_p=0.95),
    "top_k 20, top_p .9": SamplingParams(temperature=0.7, top_k=20, top_p=0.9),
    "min_p .05": SamplingParams(temperature=0.7, min_p=0.05),
    "repetition 1.3, presence .5": SamplingParams(temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5),
    "repetition 1.3, presence .5, min_p .05, top_p .95": SamplingParams(
        temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, min_p=0.05, top_p=0.95
    ),
    "typical_p .9": SamplingParams(temperature=0.7, typical_p=0.9),
    "top_n_sigma 1, xtc .5": SamplingParams(temperature=0.7, top_n_sigma=1.0, xtc_probability=0.5),
    "dry .8": SamplingParams(temperature=0.7, min_p=0.05, dry_multiplier=0.8, dry_sequence_breakers=()),
    "mirostat 2": SamplingParams(temperature=0.7, mirostat=2),
    "dynamic temperature": SamplingParams(temperature=0.7, dynatemp_range=0.3),
}
"""Every setting of the replay matrix, the one with penalties and filters together, and samplers beyond vLLM's."""


def logits_of(kind: str, num_rows: int, vocab_size: int) -> torch.Tensor:
    """[rows, V] float32 logits, the same for the same arguments."""
    generator = np.random.default_rng(20240)
    if kind == "flat":
        return torch.from_numpy((3 * generator.standard_normal((num_rows, vocab_size))).astype(np.float32))
    # Zipf's law with exponent 1.6 in a random order, and some noise: a few nats of entropy, a long tail.
    ranks = np.stack([generator.permutation(vocab_size) for _ in range(num_rows)]) + 1.0
    values = -1.6 * np.log(ranks) + 0.5 * generator.standard_normal(ranks.shape)
    return torch.from_numpy(values.astype(np.float32))


def times_of(call: Callable[[], object], repeats: int) -> dict[str, float]:
    """Wall time (median, least) and processor time (median, all threads) of `call` in ms, after three warm-up calls.

    On a machine that runs other work, the least wall time and the processor time say what the call costs.
    """
    for _ in range(3):
        call()
    wall, processor = [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        call()
        wall.append(1e3 * (time.perf_counter() - started))
        processor.append(1e3 * (time.process_time() - used))
    found = {"median_ms": statistics.median(wall), "least_ms": min(wall), "cpu_ms": statistics.median(processor)}
    return {name: round(value, 3) for name, value in found.items()}


def measure(arguments: argparse.Namespace) -> list[dict[str, object]]:
    """One record for each kind of logits and each setting."""
    chain = SamplerChain(dtype=arguments.dtype)
    generator = np.random.default_rng(7)
    prompt, output, drafts = (
        generator.integers(0, arguments.vocab_size, size).tolist() for size in (512, 200, arguments.rows - 1)
    )
    records: list[dict[str, object]] = []
    for kind in ("peaked", "flat"):
        logits = logits_of(kind, arguments.rows, arguments.vocab_size)
        for name, params in SETTINGS.items():
            row_params = resolve(params, None, arguments.vocab_size)
            base = History(prompt, output)
            histories = [base, *(base.extended(drafts[: 1 + row]) for row in range(len(drafts)))]
            for history in histories:
                history.states = row_params.first_history([0]).states

            def chain_only(
                logits: torch.Tensor = logits, row_params: object = row_params, histories: list[History] = histories
            ) -> object:
                return chain.laws(logits, row_params, histories, noise=KeyedNoise(2))  # type: ignore[arg-type]

            steps = iter(range(1_000_000))

            def with_noise(run: Callable[[], object] = chain_only, steps: Iterator[int] = steps) -> object:
                # A position of its own for every row and call: no field is answered from a cache.
                noise, step = KeyedNoise(1), next(steps)
                laws = run()
                return [law.draw(noise, Key(Purpose.TARGET, step * 64 + row)) for row, law in enumerate(laws)]  # type: ignore[attr-defined]

            laws = chain.laws(logits, row_params, histories, noise=KeyedNoise(2))
            chain_times = times_of(chain_only, arguments.repeats)
            records.append(
                {
                    "logits": kind,
                    "setting": name,
                    "law": type(laws[0]).__name__,
                    "median_support": int(np.median([np.count_nonzero(law.weights()[0]) for law in laws])),
                    "chain": chain_times,
                    "chain_and_draw": times_of(with_noise, arguments.repeats),
                    "chain_median_ms_per_row": round(chain_times["median_ms"] / arguments.rows, 4),
                }
            )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=9)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    document = {
        "benchmark": "chain",
        "rows": arguments.rows,
        "vocab_size": arguments.vocab_size,
        "dtype": arguments.dtype,
        "threads": arguments.threads,
        "repeats": arguments.repeats,
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "machine": platform.machine(),
        "results": measure(arguments),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
