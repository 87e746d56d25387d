"""Admission: requests wait for a slot, are prefilled, and step together until they end."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

from draftproof.engine.request import Emitted, Request
from draftproof.engine.step import Machinery, step
from draftproof.errors import DraftproofError


def run(machinery: Machinery, requests: Iterable[Request]) -> Generator[tuple[Request, list[Emitted]], None, None]:
    """Runs requests to their ends, as many at once as the target has slots, first come first served.

    Yields (request, newly committed tokens) as passes finish; an error ends its own request and is
    found in `request.error`. When the caller stops iterating, slots are freed and unfinished
    requests are marked aborted; what they have emitted stays.
    """
    waiting = deque(request for request in requests if not request.is_finished)
    free = deque(range(machinery.target.num_slots))
    running: list[Request] = []
    try:
        while waiting or running:
            while waiting and free:
                request = waiting.popleft()
                request.slot = free.popleft()
                running.append(request)
                _prefill(machinery, request)
            alive = [request for request in running if not request.is_finished]
            yield from step(machinery, alive) if alive else ()
            for request in [request for request in running if request.is_finished]:
                running.remove(request)
                free.append(request.slot)
                if request.error is not None:
                    yield request, []
    finally:
        for request in running:
            _release(machinery, request)
        for request in (*running, *waiting):
            if not request.is_finished:
                request.abort()


def _prefill(machinery: Machinery, request: Request) -> None:
    try:
        machinery.target.prefill(request.slot, request.context_ids[:-1])
    except DraftproofError as error:
        _release(machinery, request)
        request.fail_with(error)


def _release(machinery: Machinery, request: Request) -> None:
    machinery.target.release(request.slot)
    if machinery.drafter is not None:
        machinery.drafter.release(request.slot)
