"""Compilation with a time limit: a grammar that takes too long fails its own request and holds up no other.

Each grammar is compiled in a thread of its own, its first mask included (libraries put work off until then); whoever
asks for it waits for `seconds` at most. The libraries can't be interrupted, so a late compilation goes on, and is kept
for the next request with that grammar once it is done. While MAX_LATE of them run, new grammars are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from threading import Lock, Thread
from typing import Final

import numpy as np

from draftproof.errors import GrammarError
from draftproof.grammar.backend import Compiled
from draftproof.structured import StructuredOutputsParams

SECONDS: Final = 10.0
MAX_LATE: Final = 2


class Compilations:
    """The compilations under way. keep: called with each one's result, in its thread, before anybody who waits."""

    def __init__(
        self,
        keep: Callable[[StructuredOutputsParams, Compiled], None],
        *,
        seconds: float = SECONDS,
        max_late: int = MAX_LATE,
    ) -> None:
        self._keep, self.seconds, self.max_late = keep, seconds, max_late
        self._running: dict[StructuredOutputsParams, Future[Compiled]] = {}
        self._late: set[StructuredOutputsParams] = set()
        self._lock = Lock()

    def result(
        self, key: StructuredOutputsParams, compile_it: Callable[[StructuredOutputsParams], Compiled], vocab_size: int
    ) -> Compiled:
        """What `compile_it(key)` makes; one compilation serves all that ask for the same key meanwhile.

        Raises GrammarError where it takes longer than `seconds`, and what `compile_it` raises.
        """
        with self._lock:
            future = self._running.get(key)
            if future is None:
                if len(self._late) >= self.max_late:
                    raise GrammarError(
                        f"{len(self._late)} grammars are still being compiled after {self.seconds:g} s, the most that "
                        "may be; send the request again later"
                    )
                future = self._running[key] = Future()
                work = (key, compile_it, vocab_size, future)
                Thread(target=self._run, args=work, name="draftproof grammar", daemon=True).start()
        try:
            return future.result(self.seconds)
        except FutureTimeoutError:
            with self._lock:
                if not future.done():
                    self._late.add(key)
                    raise GrammarError(
                        f"compiling the grammar takes longer than {self.seconds:g} s; write fewer or smaller "
                        "repetitions, or try the other backend"
                    ) from None
            return future.result()

    def _run(
        self,
        key: StructuredOutputsParams,
        compile_it: Callable[[StructuredOutputsParams], Compiled],
        vocab_size: int,
        future: Future[Compiled],
    ) -> None:
        told: Callable[[], None]
        try:
            compiled = compile_it(key)
            compiled.matcher().fill(np.zeros((1, -(-vocab_size // 32)), dtype=np.int32))
            self._keep(key, compiled)
            told = partial(future.set_result, compiled)
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            told = partial(future.set_exception, error)
        with self._lock:
            del self._running[key]
            self._late.discard(key)
            told()
