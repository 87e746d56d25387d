"""How many tokens the cache holds: planned when a target is made, from what is asked for and what is free."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from draftproof.errors import ParameterError
from draftproof.targets.cache import LayerShape
from draftproof.targets.extents import STEP, num_columns

SHARE: Final = 0.7
"""Of the free memory, what the cache may take where nothing is asked for."""


def plan_columns(
    shapes: Sequence[LayerShape],
    *,
    num_slots: int,
    max_model_len: int,
    max_num_cached_tokens: int | None = None,
    cache_memory: int | None = None,
    num_state_bytes: int = 0,
) -> int:
    """Columns of the cache: enough for one sequence of max_model_len, at most for one in every slot.

    max_num_cached_tokens: of all slots together. cache_memory: bytes. At most one of them is given; without them the
    cache takes what every slot could need, or seven tenths of what is free. num_state_bytes: of the slots' recurrent
    states, which are taken from what is free beforehand. Raises ParameterError: it says what fits.
    """
    per_token = max(sum(shape.num_bytes for shape in shapes), 1)
    least, most = num_columns(max_model_len), num_slots * num_columns(max_model_len)
    if max_num_cached_tokens is not None and cache_memory is not None:
        raise ParameterError("cache_memory", cache_memory, "unset where max_num_cached_tokens is given")
    device = shapes[0].device
    free = free_bytes(device)
    if free is not None and num_state_bytes:
        if num_state_bytes > SHARE * free:
            raise ParameterError(
                "max_num_seqs",
                num_slots,
                f"at most what fits: {num_slots} recurrent states take {num_state_bytes} bytes, and {free} are free on "
                f"{device}",
                f"lower it to {int(SHARE * free) * num_slots // num_state_bytes} or less",
            )
        free -= num_state_bytes
    given: tuple[str, int] | None = None
    if max_num_cached_tokens is not None:
        given, fits = ("max_num_cached_tokens", max_num_cached_tokens), STEP * (max_num_cached_tokens // STEP)
    elif cache_memory is not None:
        given, fits = ("cache_memory", cache_memory), STEP * (cache_memory // (per_token * STEP))
    else:
        fits = most if free is None else STEP * (int(SHARE * free) // (per_token * STEP))
    columns = min(fits, most)
    advice = f"a token takes {per_token} bytes; pass max_model_len={max(fits, 0)} or less" if fits >= STEP else ""
    if columns < least:
        advice = advice or "give the cache more memory, or use a smaller model"
        need = f"{least} tokens and {least * per_token} bytes"
        if given is None:
            room = f"at most what fits: one sequence takes {need}, and {free} bytes are free on {device}"
            raise ParameterError("max_model_len", max_model_len, room, advice)
        raise ParameterError(*given, f"enough for one sequence of max_model_len={max_model_len}: {need}", advice)
    if given and free is not None and columns * per_token > free:
        fitting = STEP * (int(SHARE * free) // (per_token * STEP))
        raise ParameterError(
            given[0],
            given[1],
            f"at most what is free on {device}: {free} bytes, {fitting} tokens of {per_token} bytes",
            "lower it, or lower max_num_seqs or max_model_len",
        )
    return columns


def free_bytes(device: torch.device) -> int | None:
    """Memory that can be had on the device; None where the system doesn't say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return None
