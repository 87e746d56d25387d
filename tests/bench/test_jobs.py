"""Work over processes: the tasks' order, whatever their number, and no more than asked for."""

import math
from itertools import count

import pytest

from benchmarks.jobs import in_order


@pytest.mark.parametrize("num_jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(num_jobs):
    assert list(in_order(math.sqrt, [float(n * n) for n in range(9)], num_jobs)) == [float(n) for n in range(9)]
    assert list(in_order(math.sqrt, [], num_jobs)) == []


@pytest.mark.parametrize(("num_jobs", "most"), [(1, 3), (2, 7)])
def test_stops_early(num_jobs, most):
    """Endless tasks: after three results no more than those and 2 · num_jobs have been taken."""
    taken = []

    def tasks():
        for number in count():
            taken.append(number)
            yield number

    results = in_order(math.factorial, tasks(), num_jobs)
    assert [next(results) for _ in range(3)] == [1, 1, 2]
    results.close()
    assert 3 <= len(taken) <= most


def test_a_failure_is_the_callers():
    with pytest.raises(ValueError):
        list(in_order(math.sqrt, [1.0, -1.0], 2))
