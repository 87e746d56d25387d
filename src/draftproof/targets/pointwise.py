"""Do this machine's pointwise operations depend on where a number stands? Asked of those that a forward uses.

On a CPU an operation such as silu runs over whole vectors of numbers, and what is left at a tensor's end, or at the end
of a thread's share, goes through scalar code that may round otherwise. Whether a token's numbers are among those
depends on how many tokens stand beside it, unless each token has a multiple of the vector's length, as in most models.
In bfloat16 such differences are rare, and a probe of whole forwards can miss them; so each operation is asked by
itself, over many numbers, near and far from zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WIDTHS: Final = (512, *range(1, 10), 15, 16, 17, 31, 32, 33, 64, 128, 480)
"""Numbers of tokens that are tried; the first is what the others are compared with."""
MOST_PIECES: Final = 48
ROUNDED_ALIKE: Final = frozenset({"neg", "abs", "relu", "add", "sub", "mul", "div", "clamp", "sqrt"})
"""IEEE 754 leaves them one result; they are not asked."""
SEED: Final = 58


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered: notes the pointwise operations of one tensor that run, once for each kind and size.

    num_tokens: of the forward that runs; what it computes for no whole number of elements a token is not noted.
    """

    def __init__(self, num_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_tokens = num_tokens
        self.found: dict[tuple[Any, ...], tuple[Callable[[torch.Tensor], Any], int, torch.dtype]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if args and _is_asked(func, args, given) and args[0].numel() % self.num_tokens == 0:
            size, dtype, rest = args[0].numel() // self.num_tokens, args[0].dtype, args[1:]
            key = (func, size, dtype, repr(rest), repr(given))
            if key not in self.found:
                self.found[key] = (lambda values: func(values, *rest, **given), size, dtype)
        return func(*args, **given)


def _is_asked(func: Any, args: Any, kwargs: Any) -> bool:
    """A pointwise operation of one floating-point tensor, out of place."""
    others = [*args[1:], *kwargs.values()]
    return (
        torch.Tag.pointwise in func.tags
        and func.overloadpacket.__name__ not in ROUNDED_ALIKE
        and isinstance(args[0], torch.Tensor)
        and args[0].is_floating_point()
        and not func._schema.is_mutable
        and not any(isinstance(item, torch.Tensor) for item in others)
    )


@torch.no_grad()
def pointwise_agrees(recorded: Recorded, num_tokens: int | None) -> bool:
    """Does none of the operations look at a number's place, whatever the number of tokens?

    num_tokens: of every forward, where it is fixed; then at whichever row of it a token stands.
    """
    return all(_agrees(*asked, num_tokens) for asked in recorded.found.values())


def _agrees(operation: Callable[[torch.Tensor], Any], size: int, dtype: torch.dtype, num_tokens: int | None) -> bool:
    """size: elements of one token."""
    first, others = _pieces(num_tokens)
    generator = torch.Generator().manual_seed(SEED)
    values = torch.randn(first[-1][1] * size, generator=generator)
    values[::2] *= torch.exp(3 * torch.randn(len(values[::2]), generator=generator))
    values = values.to(dtype)

    def result(begin: int, end: int) -> torch.Tensor:
        return torch.nan_to_num(operation(values[begin * size : end * size]))

    expected = torch.cat([result(begin, end) for begin, end in first])
    return all(torch.equal(result(begin, end), expected[begin * size : end * size]) for begin, end in others)


def _pieces(num_tokens: int | None) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Tokens (begin, end) that run together: what is compared with, without a gap, and what is compared."""
    if num_tokens is None:
        whole = WIDTHS[0]
        starts = ((width, range(0, whole - width + 1, width)[:MOST_PIECES]) for width in WIDTHS[1:])
        return [(0, whole)], [(start, start + width) for width, some in starts for start in some]
    first = [(num_tokens * index, num_tokens * (index + 1)) for index in range(MOST_PIECES)]
    shifts = {1, num_tokens // 2} - {0, num_tokens}
    return first, [(begin + shift, end + shift) for shift in sorted(shifts) for begin, end in first[:-1]]
