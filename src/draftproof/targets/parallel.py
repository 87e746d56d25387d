"""One target over several processes: transformers cuts the layers, one process decides.

Every process of a torchrun loads its part of the model (`load_target(..., sharded=True)`, transformers' own plan for
tensor parallelism) and keeps its part of the cache. The first one leads: it alone has an engine, drafters, noise and
requests, and each call that it makes of its target is told to the others, which make the same call of theirs. So
what is drafted, drawn, accepted and kept is decided once; logits that differed in a bit between processes, or
a clock, could not make them go apart.

    target, tokenizer = load_target(folder, sharded=True)
    if is_leader():
        with LeadingTarget(target) as leading:
            llm = LLM.from_target(leading, tokenizer)
            ...
    else:
        follow(target)

`LLM(…, tensor_parallel_size=N)` does the same (`lead`).

With each call the leader tells how long its slots are; a process that has other lengths stops with an error instead of
computing something else. Learned drafters call the model's own head, which no single process has: they are refused.
"""

from __future__ import annotations

import atexit
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
import torch.distributed as dist

from draftproof.errors import DraftproofError, ModelError, ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest, Target

if TYPE_CHECKING:
    from draftproof.targets.hf import HFTarget

END = "end"
"""What the leader tells last."""


def is_leader() -> bool:
    """True in the process that decides, and where there is only one."""
    return not dist.is_initialized() or dist.get_rank() == 0


def check_processes(size: int) -> None:
    """Raises ParameterError unless torchrun has started as many processes as the model is to be cut over."""
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if size not in (1, started):
        raise ParameterError(
            "tensor_parallel_size",
            size,
            f"1, or the number of processes, which is {started}",
            f"start it by `torchrun --nproc-per-node {size}`: `-m draftproof …`, or your own program",
        )


def lead(target: HFTarget) -> Target:
    """The leader's target, closed when its program ends. The other processes do their part until then, and exit."""
    if not is_leader():
        follow(target)
        raise SystemExit(0)
    leading = LeadingTarget(target)
    atexit.register(leading.close)
    return cast("Target", leading)


def plan_arguments() -> dict[str, Any]:
    """What `from_pretrained` is given for transformers' own plan; its name changed between releases."""
    try:
        from transformers.distributed.configuration_utils import DistributedConfig
    except ImportError:
        return {"tp_plan": "auto"}
    if "tp_plan" not in inspect.signature(DistributedConfig).parameters:
        return {"tp_plan": "auto"}
    return {"distributed_config": DistributedConfig(tp_plan="auto")}


@contextmanager
def leaves_at_exit() -> Iterator[None]:
    """A group of processes that is started inside is left when the program ends. A caller's own group is left to it.

    A group that outlives the interpreter aborts its process now and then: gloo's threads hold Python objects of the
    last call, and can't drop them any more.
    """
    found = dist.is_initialized()
    try:
        yield
    finally:
        if dist.is_initialized() and not found:
            atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class LeadingTarget:
    """The leader's target. What it is asked is answered by its own part; what changes it is told to the others.

    Use it as a context: at its end the followers return from `follow`.
    """

    def __init__(self, target: HFTarget) -> None:
        """Call in the leader, while the others call `follow`; raises ModelError elsewhere."""
        if not is_leader():
            raise ModelError(f"process {dist.get_rank()} doesn't lead; call follow(target) in it")
        self._target, self._group, self._open = target, _group(), True

    def __enter__(self) -> LeadingTarget:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the followers go. No call can be made after it."""
        if self._open:
            self._open = False
            _tell(self._group, (END, (), ()))
            _end(self._group)

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "taps"):
            raise AttributeError(f"a target that is cut over processes has no {name!r} of its own")
        return getattr(self._target, name)

    def score(self, requests: Sequence[ScoreRequest]) -> list[torch.Tensor]:
        """See `Target.score`."""
        found: list[torch.Tensor] = self._do("score", list(requests))
        return found

    def prefill(self, slot: int, token_ids: Sequence[int]) -> None:
        """See `Target.prefill`."""
        self._do("prefill", slot, list(token_ids))

    def copy(self, source: int, slot: int, length: int) -> None:
        """See `Target.copy`."""
        self._do("copy", source, slot, length)

    def rewind(self, slot: int, length: int, path: Sequence[int] = ()) -> None:
        """See `Target.rewind`."""
        self._do("rewind", slot, length, tuple(path))

    def release(self, slot: int) -> None:
        """See `Target.release`."""
        self._do("release", slot)

    def request_taps(self, tap_ids: Sequence[int]) -> NoReturn:
        """Raises UnsupportedModelError."""
        raise UnsupportedModelError(
            "learned drafters need the target's head, which is cut over processes; use ngram, suffix or draft_model"
        )

    def _do(self, name: str, *arguments: Any) -> Any:
        if not self._open:
            raise ModelError(f"{name} of a target whose followers were let go; make another LeadingTarget")
        _tell(self._group, (name, arguments, tuple(self._target.cache.lengths)))
        return getattr(self._target, name)(*arguments)


def follow(target: HFTarget) -> None:
    """Make the leader's calls until it ends. Raises ModelError where this process has gone another way."""
    group = _group()
    while True:
        name, arguments, lengths = _listen(group)
        if name == END:
            _end(group)
            return
        own = tuple(target.cache.lengths)
        if own != lengths:
            raise ModelError(
                f"process {dist.get_rank()} holds slots of {own} tokens where the leader's are {lengths}: they no "
                "longer compute the same; start all processes anew"
            )
        try:
            getattr(target, name)(*arguments)
        except DraftproofError:
            # The leader's call was refused alike, before anything was changed.
            continue


def _group() -> Any:
    """For Python objects: nothing of theirs passes through a device."""
    return dist.new_group(backend="gloo") if dist.is_initialized() else None


def _end(group: Any) -> None:
    if group is not None:
        dist.destroy_process_group(group)


def _tell(group: Any, message: Any) -> None:
    if group is not None:
        dist.broadcast_object_list([message], src=0, group=group)


def _listen(group: Any) -> Any:
    message = [None]
    dist.broadcast_object_list(message, src=0, group=group)
    return message[0]
