"""Two guards around the package's own code: poisoned memory, and no global random generators.

A guarded function behaves as usual for every caller outside `draftproof`. For a caller inside it:
- memory that numpy or torch would leave uninitialised is filled with NaN, or with an integer that no valid id or
  count can equal, so that a read before a write shows up as a wrong result;
- a draw from a global generator (torch without `generator=`, numpy's legacy functions and an unseeded
  `default_rng`, the module `random`) raises GlobalRandomnessError.

For a draw, the caller is the nearest Python frame outside the numerical libraries: `torch.distributions`, `nn.Linear`
or `scipy.stats` used by the package counts as the package's draw; a transformers module that it calls does not.
"""

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

PACKAGE = "draftproof"

# Their frames are looked through: a draw that they make for the package is the package's.
TRANSPARENT = frozenset({"numpy", "random", "scipy", "torch"})

TORCH_DRAWS = (
    "bernoulli",
    "manual_seed",
    "multinomial",
    "normal",
    "poisson",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "seed",
)
TORCH_SEEDS = ("manual_seed", "seed")
TENSOR_DRAWS = (
    "bernoulli",
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "multinomial",
    "normal_",
    "random_",
    "uniform_",
)
TORCH_EMPTIES = ("empty", "empty_like", "empty_permuted", "empty_strided")
TENSOR_EMPTIES = ("new_empty", "new_empty_strided", "resize_")
NUMPY_EMPTIES = ("empty", "empty_like")


class GlobalRandomnessError(AssertionError):
    """The package drew from a generator that its request's seed does not key."""


def _is_in_package(module: str) -> bool:
    return module == PACKAGE or module.startswith(PACKAGE + ".")


def _package_draws() -> bool:
    """Whether the guarded function's caller, seen through the numerical libraries, is the package."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.split(".")[0] not in TRANSPARENT:
            return _is_in_package(module)
        frame = frame.f_back
    return False


def _package_calls() -> bool:
    """Whether the guarded function's direct caller is the package."""
    return _is_in_package(sys._getframe(2).f_globals.get("__name__", ""))


def poison_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Fill with NaN, the most negative integer (the largest for unsigned types), or True."""
    if tensor.device.type == "meta":
        return tensor
    with torch.no_grad():
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
            return tensor.fill_(float("nan"))
        if tensor.dtype is torch.bool:
            return tensor.fill_(True)
        limits = torch.iinfo(tensor.dtype)
        return tensor.fill_(limits.min if limits.min < 0 else limits.max)


def poison_array(array: Any) -> Any:
    """The same fill as poison_tensor, for a numpy array; object arrays hold None already."""
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    elif array.dtype.kind == "b":
        array.fill(True)
    elif array.dtype.kind == "i":
        array.fill(np.iinfo(array.dtype).min)
    elif array.dtype.kind == "u":
        array.fill(np.iinfo(array.dtype).max)
    return array


def _poisoning(original: Callable[..., Any], poison: Callable[[Any], Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return poison(result) if _package_calls() else result

    return guarded


def _poisoning_resize(original: Callable[..., Any]) -> Callable[..., Any]:
    """`resize_` keeps the elements that were there: only those beyond them are uninitialised."""

    @functools.wraps(original)
    def guarded(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        num_kept = tensor.numel()
        result = original(tensor, *args, **kwargs)
        if _package_calls() and tensor.numel() > num_kept:
            poison_tensor(tensor.view(-1)[num_kept:])
        return result

    return guarded


def _forbidding(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        # Only torch's functions know `generator`; the others would refuse it.
        if kwargs.get("generator") is None and _package_draws():
            raise GlobalRandomnessError(f"{name} uses a global generator; draw from draftproof.noise")
        return original(*args, **kwargs)

    return guarded


def _forbidding_unseeded(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def guarded(seed: Any = None) -> Any:
        if seed is None and _package_draws():
            raise GlobalRandomnessError("numpy.random.default_rng() without a seed can't be replayed; pass a seed")
        return original(seed)

    return guarded


def _draws_of(module: Any, instance: object) -> list[str]:
    """The functions of `module` that advance or reseed its hidden global generator."""
    methods = [name for name in dir(module) if getattr(getattr(module, name), "__self__", None) is instance]
    # numpy's `seed` is a plain function around the generator's method.
    return [
        name for name in sorted({*methods, "seed"}) if name not in ("getstate", "get_state", "setstate", "set_state")
    ]


class Guards:
    """Installs and removes the guards. `installed` is true while every one of them is in place."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any, Any]] = []

    @property
    def installed(self) -> bool:
        return bool(self._saved) and all(getattr(owner, name) is guard for owner, name, _, guard in self._saved)

    def install(self) -> None:
        if self._saved:
            raise RuntimeError("the guards are installed already")
        for name in TORCH_EMPTIES:
            self._patch(torch, name, _poisoning(getattr(torch, name), poison_tensor))
        for name in TENSOR_EMPTIES:
            original = getattr(torch.Tensor, name)
            guard = _poisoning_resize(original) if name == "resize_" else _poisoning(original, poison_tensor)
            self._patch(torch.Tensor, name, guard)
        for name in NUMPY_EMPTIES:
            self._patch(np, name, _poisoning(getattr(np, name), poison_array))
        for name in TORCH_DRAWS:
            self._patch(torch, name, _forbidding(getattr(torch, name), f"torch.{name}"))
        for name in TORCH_SEEDS:
            self._patch(torch.random, name, _forbidding(getattr(torch.random, name), f"torch.random.{name}"))
        for name in TENSOR_DRAWS:
            self._patch(torch.Tensor, name, _forbidding(getattr(torch.Tensor, name), f"Tensor.{name}"))
        for name in _draws_of(np.random, np.random.mtrand._rand):  # type: ignore[attr-defined]
            self._patch(np.random, name, _forbidding(getattr(np.random, name), f"numpy.random.{name}"))
        self._patch(np.random, "default_rng", _forbidding_unseeded(np.random.default_rng))
        for name in _draws_of(random, random._inst):  # type: ignore[attr-defined]
            self._patch(random, name, _forbidding(getattr(random, name), f"random.{name}"))

    def remove(self) -> None:
        for owner, name, original, _ in reversed(self._saved):
            setattr(owner, name, original)
        self._saved = []

    def _patch(self, owner: Any, name: str, guard: Any) -> None:
        # __dict__ of torch.Tensor lacks the methods that it inherits; remembering the bound original is enough,
        # since setting it back gives the same behaviour.
        self._saved.append((owner, name, getattr(owner, name), guard))
        setattr(owner, name, guard)
