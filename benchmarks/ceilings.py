"""What a CUDA device does at most: bytes of a copy and operations of a product, rested and in the state of a step.

A device draws as much power as it may and lowers its clock until it does. A few products after a pause run at a clock
that no lasting work has, so a floor made of their rate is below what any code reaches that runs for longer. `beside`
lets a step, products and copies run in turns, each for a quarter of a second, and takes of each what it did when the
clock had settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

COPIED: Final = 1 << 30
SIDE: Final = 8192
STRETCH: Final = 0.25
"""Seconds of a turn; the power is under control long before its half."""
TURNS: Final = 3
QUEUED: Final = 8


def median(values: list[float]) -> float:
    """The upper one of an even number."""
    return sorted(values)[len(values) // 2]


def median_ms(call: Callable[[], Any], repeats: int) -> float:
    """Of the device's time, by events."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def lasting_ms(call: Callable[[], Any], seconds: float) -> list[float]:
    """Of each of as many calls as fill the time, a few of which are always queued."""
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        call()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if len(events) > QUEUED:
            events[-QUEUED].synchronize()
    torch.cuda.synchronize()
    return [first.elapsed_time(second) for first, second in zip(events, events[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Rates:
    """Of a copy, read and written: bytes a millisecond. Of a product: operations a millisecond."""

    bytes: float
    flops: float

    def floor_ms(self, num_bytes: float, num_flops: float) -> float:
        """The longer of the two."""
        return max(num_bytes / self.bytes, num_flops / self.flops)


class Ceilings:
    """Holds a copy's and a product's tensors: 2.5 GB. The product's numbers are drawn: zeros take less power."""

    def __init__(self) -> None:
        source = torch.empty(COPIED, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        generator = torch.Generator("cuda").manual_seed(1)
        left, right = (torch.randn(SIDE, SIDE, generator=generator, device="cuda").bfloat16() for _ in range(2))
        self._copy: Callable[[], Any] = lambda: target.copy_(source)
        self._product: Callable[[], Any] = lambda: left @ right
        torch.cuda.synchronize()
        time.sleep(1)
        self.rested = _rates(median_ms(self._copy, 20), median_ms(self._product, 10))
        """Of few calls after a second of rest."""

    def beside(self, step: Callable[[], Any]) -> tuple[float, Rates]:
        """Milliseconds of a step that lasts, which is launched without waiting for it, and the rates of its state."""
        calls = {"step": step, "product": self._product, "copy": self._copy}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(TURNS):
            for name, call in calls.items():
                found = lasting_ms(call, STRETCH)
                times[name].append(median(found[len(found) // 2 :]))
        return median(times["step"]), _rates(median(times["copy"]), median(times["product"]))


def _rates(copied_ms: float, multiplied_ms: float) -> Rates:
    return Rates(2 * COPIED / copied_ms, 2 * SIDE**3 / multiplied_ms)
