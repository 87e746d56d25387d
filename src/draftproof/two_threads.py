"""A loop over independent items on two threads, for numpy's arithmetic, which runs without the interpreter's lock.

Rule: items are taken one by one, by the caller's thread and by one helper, until none is left; results come in the
items' order, and an error is raised as it would be by a plain loop, once both threads have stopped. The helper is one
thread for the whole process, started when first needed; while it is busy for another caller, or where the machine has
one core, the caller does all by itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_busy: Final = threading.Lock()
_helper: list[tuple[int, ThreadPoolExecutor]] = []


def in_two_threads(call: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """[call(item) for item in items]. `call` must not depend on the order, nor on the thread."""
    if len(items) < 2 or _num_cores() < 2 or not _busy.acquire(blocking=False):
        return [call(item) for item in items]
    try:
        results: dict[int, Result] = {}
        left = iter(range(len(items)))

        def work() -> None:
            # Under the interpreter's lock `next` on one range iterator gives each index to one thread.
            for index in left:
                results[index] = call(items[index])

        other = _pool().submit(work)
        try:
            work()
        finally:
            # The helper may still be in its last item; its error, if any, is raised here.
            other.result()
        return [results[index] for index in range(len(items))]
    finally:
        _busy.release()


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pool() -> ThreadPoolExecutor:
    # A forked child has none of its parent's threads.
    if not _helper or _helper[0][0] != os.getpid():
        _helper[:] = [(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="draftproof-noise"))]
    return _helper[0][1]
