"""Work in several processes of one thread each, with results that do not depend on how many they are."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def in_order(function: Callable[[_Task], _Result], tasks: Iterable[_Task], num_jobs: int) -> Iterator[_Result]:
    """function(task) of every task, in the tasks' order; close the iterator to stop early.

    function: a module's own, for `num_jobs` > 1, where up to 2 · num_jobs tasks are taken ahead of what has come back.
    """
    if num_jobs == 1:
        yield from map(function, tasks)
        return
    left, waiting = iter(tasks), deque[Future[_Result]]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_jobs, mp_context=context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        try:
            while True:
                waiting.extend(pool.submit(function, task) for task in islice(left, 2 * num_jobs - len(waiting)))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
