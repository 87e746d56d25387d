"""Which branches of the kernels requests need, by name: kernels are compiled for them, which costs seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from draftproof.engine.request import Request
from draftproof.errors import ParameterError
from draftproof.kernels import Requests

Kinds = dict[str, bool]


class AskedKinds:
    """What each request of the last batch asks for, and what was ever asked for."""

    def __init__(self) -> None:
        self._known: list[tuple[Request, Kinds | None]] = []
        self._ever: Kinds | None = None

    def of(self, request: Request) -> Kinds | None:
        """None where the device's draws don't honour all that it asks for."""
        for known, kinds in self._known:
            if known is request:
                return kinds
        try:
            own = Requests.of([request.params], [request.seed], [request.noise.sample_index], device="cpu")
        except ParameterError:
            return None
        return kinds_of(own)

    def keep(self, requests: Sequence[Request]) -> None:
        """Remember these requests, and no others."""
        self._known = [(request, self.of(request)) for request in requests]

    def with_all_before(self, requests: Sequence[Request]) -> Kinds:
        """What serves these requests, all honoured, and whatever was served before."""
        for request in requests:
            kinds = self.of(request)
            assert kinds is not None
            self._ever = kinds if self._ever is None else widened(self._ever, kinds)
        assert self._ever is not None
        return self._ever


def kinds_of(requests: Requests) -> Kinds:
    """Of a batch."""
    values = {entry.name: getattr(requests, entry.name) for entry in fields(requests)}
    return {name: value for name, value in values.items() if isinstance(value, bool)}


def widened(kinds: Kinds, others: Kinds) -> Kinds:
    """What serves both: kernels that can do more give the same tokens."""
    return {
        name: (kinds[name] and others[name]) if name == "unfiltered" else (kinds[name] or others[name])
        for name in kinds
    }
