"""Shapes of the launches, and the scratch that they write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from draftproof.errors import MissingExtraError, ParameterError

KINDS: Final = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_KEY_SHIFTS: Final = {"bf16": 16, "fp16": 13, "fp32": 0}
_SLOTS: Final = 64  # groups of tokens in a tile, as in device/race.py
_TILES: Final = (256, 512, 1024)  # a lane's tokens are the bits of a word (device/rows.py)


@dataclass(frozen=True, slots=True)
class Plan:
    """How the rows of one call are cut up."""

    vocab_size: int
    num_rows: int
    kind: str
    packed: bool
    tile: int
    num_plain: int
    num_tiles: int
    tiles: int
    splits: int
    tiles_per_split: int
    num_racers: int
    racers: int
    group: int
    list_size: int
    key_shift: int
    num_exceptions: int
    overlaps: bool

    @classmethod
    def of(
        cls,
        logits: torch.Tensor,
        vocab_size: int,
        num_exceptions: int = 0,
        tile: int | None = None,
        splits: int = 1,
    ) -> Plan:
        """The plan for `logits` [rows, >= vocab_size]. num_exceptions: how many special tokens a request may have.

        tile: tokens a tile, 256, 512 or 1,024; chosen if None. splits: programs that read a row, at most.
        """
        if logits.ndim != 2 or logits.dtype not in KINDS or logits.stride(1) != 1:
            raise ParameterError(
                "logits", f"{logits.dtype} of shape {tuple(logits.shape)}, strides {logits.stride()}",
                "[rows, vocabulary] in bfloat16, float16 or float32, a row's logits side by side",
            )  # fmt: skip
        if not 0 < vocab_size <= logits.shape[1]:
            raise ParameterError("vocab_size", vocab_size, f"1 to {logits.shape[1]}, the width of the logits")
        kind = KINDS[logits.dtype]
        tile = tile or (1024 if vocab_size > 8192 else 256)
        if tile not in _TILES:
            raise ParameterError("tile", tile, " or ".join(map(str, _TILES)))
        num_plain = -(-vocab_size // tile)
        num_special = -(-num_exceptions // tile)
        tiles_per_split = -(-num_plain // min(num_plain, splits))
        splits = -(-num_plain // tiles_per_split)
        racers = splits + (num_special > 0)
        padded = -(-vocab_size // 4) * 4
        tiles = _power_of_two(num_plain + num_special)
        packed = (
            kind != "fp32"
            and logits.stride(0) % 4 == 0
            and logits.storage_offset() % 4 == 0
            and logits.data_ptr() % 8 == 0
            and padded <= logits.shape[1]
        )
        return cls(
            vocab_size, logits.shape[0], kind, packed, tile, num_plain, num_plain + num_special,
            tiles, splits, tiles_per_split, racers, _power_of_two(racers),
            max(1, 4096 // tile), 1024 if vocab_size > 8192 else 256, 0 if num_exceptions else _KEY_SHIFTS[kind],
            num_exceptions, can_overlap(logits.device),
        )  # fmt: skip

    def quads(self, logits: torch.Tensor) -> torch.Tensor:
        """The view that is read four logits at a time, or the logits themselves where rows don't allow it."""
        return logits[:, : -(-self.vocab_size // 4) * 4].view(torch.int64) if self.packed else logits

    @property
    def overlapping(self) -> dict[str, bool]:
        """Options of a launch that may begin while the kernel before it runs."""
        return {"launch_pdl": True} if self.overlaps else {}

    @property
    def of_bound(self) -> dict[str, Any]:
        """Options of a launch that bounds rows (device/bound_kernels.py)."""
        return {"GROUP": max(1, self.group // 2), "LIST": self.list_size, "KEY_SHIFT": self.key_shift,
                "PACKED": self.packed, "KIND": self.kind, "EVEN": self.vocab_size % 4 == 0}  # fmt: skip

    def at_most(self, registers: int) -> dict[str, int]:
        """Options of a launch whose programs shall have no more registers, where limits were chosen: from sm_90 on."""
        return {"maxnreg": registers} if self.overlaps else {}

    def scratch(self, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Tile maxima and masses, racers' scores, ids and logits, tile lists, listed logits and ids, group maxima and
        lists."""

        def of(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty((self.num_rows, width), dtype=dtype, device=device)

        floats, ints = torch.float32, torch.int32
        return (
            of(self.tiles, floats), of(self.tiles, floats), of(3 * self.racers, floats), of(2 * self.racers, ints),
            of(2 * self.racers, floats), of(self.tiles, ints), of(self.list_size, floats), of(self.list_size, ints),
            of(self.num_tiles * _SLOTS, torch.int16), of(self.list_size, ints),
        )  # fmt: skip


def can_overlap(device: torch.device) -> bool:
    """Whether a kernel may begin while the one before it runs (device/overlap.py)."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def require_triton() -> None:
    """Raises MissingExtraError where Triton isn't installed."""
    try:
        import triton  # noqa: F401
    except ImportError:
        raise MissingExtraError("the GPU kernels", "triton", "pip install draftproof[gpu]") from None


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()
