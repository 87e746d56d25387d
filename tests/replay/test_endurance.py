"""Twenty seconds of the endurance load; `python -m benchmarks.endurance` runs it for 30 minutes."""

import torch

from benchmarks.endurance import run


def test_twenty_seconds_of_joins_leaves_cancels_and_errors():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = run(1 / 3, seed=3, which="both", say=lambda text: None)
    finally:
        torch.set_num_threads(num_threads)
    assert result["wrong"] == [] and result["requests_left"] == 0 and result["holds"]
    # The load did what it is for.
    assert all(result[name] > 0 for name in ("requests", "failed", "preempted", "reused"))
