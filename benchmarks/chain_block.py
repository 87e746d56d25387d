"""Times a verified block under `keyed`: chain and draws of nine rows, with the fields made one by one and together.

    PYTHONPATH=src python benchmarks/chain_block.py [--rows 9] [--vocab-size 49152] [--repeats 60]

Every draft token is accepted, so that every row is drawn. Prints one JSON document, milliseconds for the whole block.
`alone` makes each field when its row is drawn; `together` is what the verifier does, on two threads where there are two
cores; `one row` is plain decoding's pass, which neither touches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.chain import logits_of, times_of
from draftproof.core import Draft, Key, Law, Noise, Purpose
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.verify import get_verifier


class Alone(Noise):
    """KeyedNoise without `prepare`, as far as the verifier can see."""

    def __init__(self, noise: KeyedNoise) -> None:
        self.choice, self.coin = noise.choice, noise.coin  # type: ignore[method-assign]


def measure(num_rows: int, vocab_size: int, repeats: int) -> list[dict[str, object]]:
    """One record for the whole block and one for a single row, without filters."""
    chain, verifier = SamplerChain(), get_verifier("keyed")
    row = resolve(SamplingParams(temperature=0.7), None, vocab_size)
    laws: list[Law] = chain.laws(logits_of("flat", num_rows, vocab_size), row, [History([0])] * num_rows)
    noise = KeyedNoise(1)
    starts = iter(range(0, 1 << 30, 64))
    drafts = []
    for _ in range(2 * repeats + 8):
        start = next(starts)
        ids = [law.draw(noise, Key(Purpose.TARGET, start + index)) for index, law in enumerate(laws[:-1])]
        drafts.append(Draft.of_token_ids(start, ids))

    def block(wrap: Callable[[KeyedNoise], Noise]) -> Callable[[], object]:
        turn = iter(drafts)
        return lambda: verifier.verify(next(turn), laws, wrap(KeyedNoise(1)))

    def plain(wrap: Callable[[KeyedNoise], Noise]) -> Callable[[], object]:
        turn = iter(drafts)
        return lambda: verifier.verify(Draft.empty(next(turn).start), laws[:1], wrap(KeyedNoise(1)))

    return [
        {"what": name, "alone": times_of(make(Alone), repeats), "together": times_of(make(lambda own: own), repeats)}
        for name, make in (("block", block), ("one row", plain))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=9)
    parser.add_argument("--vocab-size", type=int, default=49152)
    parser.add_argument("--repeats", type=int, default=60)
    arguments = parser.parse_args()
    document = {
        "benchmark": "chain_block",
        "rows": arguments.rows,
        "vocab_size": arguments.vocab_size,
        "repeats": arguments.repeats,
        "cores": len(os.sched_getaffinity(0)),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "machine": platform.machine(),
        "results": measure(arguments.rows, arguments.vocab_size, arguments.repeats),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
