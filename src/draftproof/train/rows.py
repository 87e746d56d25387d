"""One token of every row of training text at a time: the forward of all rows, and the draw.

On a GPU, rows are the slots of a static cache: a captured graph of lean layers reads of each row what its document
holds and no more. Elsewhere, and for models that static forwards don't fit, plain transformers runs over one cache
whose columns all rows share, with what came before a row's document masked away.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.hf import HFTarget
from draftproof.targets.static.capturing import captured
from draftproof.train.sampling import choose_sampler
from draftproof.train.target import FrozenTarget

_KEY_STEP: Final = 16

Ints = NDArray[np.int64]


class Rows(Protocol):
    """`begin` a shard, then one call for each of its columns."""

    def begin(self, seed: int) -> None:
        """Nothing is cached, and the noise is another."""
        ...

    def __call__(self, column: int, ids: Ints, begins: Ints, temperatures: NDArray[np.float32]) -> Ints:
        """ids [rows]: the tokens at this column; begins [rows]: the columns where their documents begin.

        Returns what is drawn after them [rows]. Raises ModelError for logits without a law.
        """
        ...


def choose_rows(
    target: FrozenTarget, *, num_rows: int, num_columns: int, max_length: int, top_p: float, static: bool | None = None
) -> Rows:
    """max_length: the most tokens of a document. static: None for wherever that pays, on a GPU.

    The target is of no other use afterwards where rows are static.
    """
    if static is None:
        static = target.device.type == "cuda"
    if static:
        try:
            return StaticRows(target.model, num_rows=num_rows, max_length=max_length, top_p=top_p)
        except UnsupportedModelError:
            target = FrozenTarget(target.model, target.tokenizer, target.name)
    return SharedColumns(target, num_rows=num_rows, num_columns=num_columns, top_p=top_p)


class SharedColumns:
    """Plain transformers; all rows write the same column."""

    def __init__(self, target: FrozenTarget, *, num_rows: int, num_columns: int, top_p: float) -> None:
        columns = _KEY_STEP * -(-num_columns // _KEY_STEP)
        self._target, self._num_rows = target, num_rows
        self._cache = target.cache(num_rows, columns)
        self._columns = torch.arange(columns, device=target.device)
        self._sampler = choose_sampler(target.device, num_rows, top_p)

    def begin(self, seed: int) -> None:
        self._sampler.begin(seed)

    def __call__(self, column: int, ids: Ints, begins: Ints, temperatures: NDArray[np.float32]) -> Ints:
        tokens, first = torch.from_numpy(np.stack((ids, begins))).to(self._target.device)
        key_length = _KEY_STEP * (column // _KEY_STEP + 1)
        self._cache.prepare(range(self._num_rows), [column] * self._num_rows, 1, key_length)
        keys = self._columns[:key_length]
        seen = (keys >= first[:, None]) & (keys <= column)
        self._sampler.expect(temperatures, column)
        logits = self._target.next_logits(self._cache, tokens, column - first, seen, (column - keys).expand_as(seen))
        return _checked(self._sampler(logits))


class StaticRows:
    """A slot for each row; forward and draw are one captured graph on a CUDA device.

    model: taken over. Raises UnsupportedModelError for one that static forwards don't fit.
    """

    def __init__(self, model: Any, *, num_rows: int, max_length: int, top_p: float) -> None:
        # The token that ends a user's turn may be one too many.
        num_keys = max_length + 1
        target = HFTarget(model, num_slots=num_rows, max_model_len=num_keys, static=True)
        if not target.can_follow:
            raise UnsupportedModelError(f"{type(model).__name__} has no static forwards")
        target.expect(dict.fromkeys(range(num_rows), num_keys))
        device = target.device
        self._forward = target.following(num_rows, 1, num_keys)
        self._forward.use(range(num_rows))
        self._sampler = choose_sampler(device, num_rows, top_p)
        self._captures = device.type == "cuda"
        self._given = torch.zeros(2, num_rows, dtype=torch.int32, device=device)
        self._source = torch.arange(num_rows, device=device)
        self._drawn = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._graph: Any = None

    def begin(self, seed: int) -> None:
        self._sampler.begin(seed)

    @torch.no_grad()
    def __call__(self, column: int, ids: Ints, begins: Ints, temperatures: NDArray[np.float32]) -> Ints:
        self._given.copy_(torch.from_numpy(np.stack((ids, column - begins)).astype(np.int32)))
        self._sampler.expect(temperatures, column)
        if self._captures and self._graph is None:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._run()
        return _checked(self._drawn)

    def _run(self) -> None:
        tokens, starts = self._given.unbind(0)
        self._drawn.copy_(self._sampler(self._forward(tokens[:, None], starts, self._source)))

    def _capture(self) -> None:
        # A first run compiles kernels and makes workspaces, which a capture must not.
        cuda: Any = torch.cuda
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            self._run()
        cuda.current_stream().wait_stream(stream)
        self._graph = captured(self._run)


def _checked(drawn: torch.Tensor) -> Ints:
    found: Ints = drawn.cpu().numpy()
    if found.min() < 0:
        raise ModelError("the target's logits hold NaN, or no finite number in a row")
    return found
