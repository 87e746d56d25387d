"""One caller's requests on a shared engine, from admission to their ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable

from draftproof.engine.engine import Engine
from draftproof.engine.request import Emitted, Request


def run(engine: Engine, requests: Iterable[Request]) -> Generator[tuple[Request, list[Emitted]], None, None]:
    """Yields (request, newly committed tokens) as steps finish, until all of `requests` have ended.

    An error ends its own request and is found in `request.error`. Requests are queued as the engine has room for
    them. Others may drive the same engine in between: their steps advance these requests too. When the caller stops
    iterating, the unfinished requests are aborted; what they have emitted stays.
    """
    unfinished = [request for request in requests if not request.is_finished]
    waiting = deque(unfinished)
    num_yielded = dict.fromkeys((request.request_id for request in unfinished), 0)
    try:
        while unfinished:
            while waiting and engine.has_room:
                engine.add_request(waiting[0])
                waiting.popleft()
            engine.step()
            for request in unfinished:
                begin = num_yielded[request.request_id]
                kept = request.emitted[begin:]
                num_yielded[request.request_id] = begin + len(kept)
                if kept or request.is_finished:
                    yield request, kept
            unfinished = [
                request
                for request in unfinished
                if not request.is_finished or num_yielded[request.request_id] < len(request.emitted)
            ]
    finally:
        for request in unfinished:
            if not request.is_finished and not engine.abort(request.request_id):
                request.abort()
