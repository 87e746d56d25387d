"""What growing a tree costs besides the drafter's own forwards and laws, as a share of a step: 4 % at most at 64 nodes.

python -m benchmarks.trees.builder_cost --method eagle3 --model FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from benchmarks.trees.adaptive import CLOCKS, Ways
from benchmarks.trees.common import add_model_flags, open_target
from draftproof import SamplingParams
from draftproof.bench.prompts import BUILT_IN


class Timed:
    """Adds up the seconds of chosen methods of an object."""

    def __init__(self, clock: Any) -> None:
        self.clock, self.seconds = clock, 0.0

    def wrap(self, owner: Any, *names: str) -> None:
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def _timed(self, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = self.clock()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += self.clock() - began

        return timed


def measure(args: argparse.Namespace, num_nodes: int, noise_weight: float) -> dict[str, float]:
    """Seconds of a pass, by part."""
    clock = CLOCKS[args.clock]
    fields = {"topology": "tree", "num_tree_nodes": num_nodes, "draft_length": "fixed", "noise_weight": noise_weight}
    ways = Ways(args, {"tree": {**fields, "sharpness": 1.0}}, open_target(args))
    drafter = ways.llms["tree"].drafter
    params = SamplingParams(temperature=args.temperature, seed=args.seed, max_tokens=args.max_tokens, ignore_eos=True)
    ids = ways.llms["plain"].encode_chat([{"role": "user", "content": BUILT_IN[0].text}])
    ways.run("tree", ids, params, clock)
    source, proposing = Timed(clock), Timed(clock)
    source.wrap(drafter.source, "root_laws", "laws_after", "end_of_round")  # type: ignore[union-attr]
    proposing.wrap(drafter, "propose")
    seconds, num_passes, _ = ways.run("tree", ids, params, clock)
    builder = proposing.seconds - source.seconds
    return {
        "nodes": num_nodes,
        "zeta": noise_weight,
        "step_ms": 1e3 * seconds / num_passes,
        "laws_ms": 1e3 * source.seconds / num_passes,
        "builder_ms": 1e3 * builder / num_passes,
        "builder_share": builder / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_flags(parser)
    parser.add_argument("--nodes", type=int, nargs="+", default=[32, 64])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    began = time.perf_counter()
    rows = [measure(args, nodes, weight) for nodes in args.nodes for weight in (0.0, 1.0)]
    print(json.dumps({"rows": rows, "took_s": time.perf_counter() - began, "method": args.method}))


if __name__ == "__main__":
    main()
