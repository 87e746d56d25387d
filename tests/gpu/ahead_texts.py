"""What the GPU tests of steps that run ahead share, a file for each kind of drafter so that they run side by side."""

from pathlib import Path

import torch

from tests.engine.ahead.running import (
    PARAMS,
    PROMPTS,
    TOKENS,
    bench_of,
    drafted,
    endings,
    said,
    sizes_for,
    target_of,
    texts,
)

WIDEST_FIRST = sorted(PARAMS, key=lambda params: params.max_tokens)
"""The one that ends at once has most filters: kernels are compiled for all of them with the first batch, and not twice.
"""


def check_invariant_text(folder: Path, method: str | None, dtype: torch.dtype) -> None:
    """The same texts and endings with speculation, batch mates and captured steps, and without."""

    def target():
        return target_of(device="cuda", dtype=dtype, invariant=True, width=3 * (TOKENS + 1), **sizes_for(method))

    expected = said(bench_of(target(), None, folder, ahead=False), WIDEST_FIRST)
    bench = bench_of(target(), method, folder, ahead=True)
    together = said(bench, WIDEST_FIRST)
    assert (texts(together), endings(together)) == (texts(expected), endings(expected))
    steps = bench.engine.ahead._steps.values()
    assert bench.engine.ahead.num_steps > 8
    assert all((step._graph is not None) == (step._num_runs > 1) for step in steps)
    assert any(step._graph is not None for step in steps)
    if method is not None:
        assert sum(sum(accepted) for _, accepted in drafted(together)) > 4
    alone = bench.add(PROMPTS[-1], WIDEST_FIRST[-1])
    bench.run()
    assert texts([alone]) == texts(expected[-1:])
