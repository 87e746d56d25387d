"""What adapts itself where clocks scatter: synthetic streams, so that many of them can be told apart from luck.

    python -m benchmarks.trees.scattered

A pass's nodes survive with a * .6^rank, a being anew from .3 to .95 in each; requests last 30 passes. Times are COSTS
by width, and DRAFT for a tree, each times a log-normal of the given scatter and mean 1; the policy sees these, and is
judged by COSTS themselves: tokens emitted in a plain step's time.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from draftproof.drafters.anticipating import CuttingNodes

MOST = 32
NUM_PASSES, PER_REQUEST = 900, 30
COSTS = {1: 1.0, 3: 0.94, 5: 0.94, 9: 1.78, 17: 2.75, 33: 4.6}
"""Of the embedded model on one busy core of an Intel Xeon with AMX, in passes over one token."""
DRAFT = 0.12


def speed(scatter: float, seed: int) -> float:
    """Tokens in a plain step's time of one stream."""
    draws, settings = np.random.default_rng(seed), CuttingNodes(MOST)
    passes = np.interp(np.arange(MOST + 2), list(COSTS), list(COSTS.values()))
    emitted, spent = 0, 0.0
    policy = settings.for_request()

    def seen(time: float) -> float:
        return time * float(np.exp(draws.normal(0.0, scatter) - scatter**2 / 2))

    for index in range(NUM_PASSES):
        if index % PER_REQUEST == 0:
            policy = settings.for_request()
        survival = (0.3 + 0.65 * draws.random()) * 0.6 ** np.arange(MOST)
        asked = policy.num_tokens(None)
        size = policy.num_worth(survival[:asked]) if asked else 0
        accepted = int((draws.random(size) < survival[:size]).sum())
        if asked:
            policy.observe_draft_cost(size, seen(DRAFT))
        policy.observe(size, accepted, None)
        policy.observe_cost(1 + size, seen(float(passes[1 + size])))
        emitted += 1 + accepted
        spent += float(passes[1 + size]) + (DRAFT if asked else 0.0)
    return emitted / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scatters", type=float, nargs="+", default=[0.0, 0.15, 0.3, 0.5])
    parser.add_argument("--seeds", type=int, default=12)
    args = parser.parse_args()
    for scatter in args.scatters:
        found = [speed(scatter, seed) for seed in range(args.seeds)]
        error = float(np.std(found)) / len(found) ** 0.5
        print(json.dumps({"scatter": scatter, "mean": float(np.mean(found)), "error": error, "least": min(found)}))


if __name__ == "__main__":
    main()
