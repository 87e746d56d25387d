"""The guards of tests/surface/guards.py are tested here: a guard that never fires protects nothing."""

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests import conftest
from tests.surface.guards import GlobalRandomnessError, Guards

PACKAGE_MODULE = "draftproof.imaginary"
FOREIGN_MODULE = "transformers.imaginary"


def compile_as(module: str, expression: str) -> Callable[[], Any]:
    """A function whose code runs in a frame of `module`."""
    names = {"__name__": module, "torch": torch, "np": np, "random": random}
    exec(f"def call():\n    return {expression}\n", names)
    return names["call"]  # type: ignore[return-value]


DRAWS = [
    "torch.rand(3)",
    "torch.randn(3)",
    "torch.randint(5, (3,))",
    "torch.randperm(3)",
    "torch.rand_like(torch.zeros(3))",
    "torch.bernoulli(torch.full((3,), 0.5))",
    "torch.normal(0.0, 1.0, (3,))",
    "torch.multinomial(torch.ones(3), 1)",
    "torch.ones(3).multinomial(1)",
    "torch.zeros(3).uniform_()",
    "torch.zeros(3).exponential_()",
    "torch.zeros(3).normal_()",
    "torch.distributions.Categorical(torch.ones(3)).sample()",
    "torch.nn.Linear(2, 2)",
    "torch.manual_seed(0)",
    "torch.random.manual_seed(0)",
    "np.random.rand(3)",
    "np.random.choice(3)",
    "np.random.seed(0)",
    "np.random.default_rng()",
    "random.random()",
    "random.choice([1, 2])",
    "random.shuffle([1, 2])",
    "random.seed(0)",
]


@pytest.fixture(autouse=True)
def restored_generators() -> Any:
    """Draws made here on purpose leave no trace in the process's generators."""
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(torch_state)
    np.random.set_state(numpy_state)
    random.setstate(python_state)


@pytest.mark.parametrize("expression", DRAWS)
def test_a_global_draw_is_refused_inside_the_package_only(expression: str) -> None:
    with pytest.raises(GlobalRandomnessError):
        compile_as(PACKAGE_MODULE, expression)()
    compile_as(FOREIGN_MODULE, expression)()


@pytest.mark.parametrize(
    "expression",
    [
        "torch.rand(3, generator=torch.Generator())",
        "torch.ones(3).multinomial(1, generator=torch.Generator())",
        "np.random.default_rng(7).random(3)",
        "random.Random(7).random()",
    ],
)
def test_a_keyed_generator_is_allowed(expression: str) -> None:
    compile_as(PACKAGE_MODULE, expression)()


def test_a_similar_package_name_is_not_the_package() -> None:
    compile_as("draftproofed.module", "torch.rand(3)")()


@pytest.mark.parametrize(
    "expression",
    [
        "torch.empty(64)",
        "torch.empty(64, dtype=torch.bfloat16)",
        "torch.empty(64, requires_grad=True)",
        "torch.empty_like(torch.zeros(64))",
        "torch.empty_strided((8, 8), (8, 1))",
        "torch.zeros(2).new_empty(64)",
        "np.empty(64)",
        "np.empty_like(np.zeros(64, dtype=np.float32))",
    ],
)
def test_uninitialised_floats_are_nan_inside_the_package(expression: str) -> None:
    values = torch.as_tensor(compile_as(PACKAGE_MODULE, expression)())
    assert torch.isnan(values).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_uninitialised_signed_integers_are_the_most_negative(dtype: torch.dtype) -> None:
    values = compile_as(PACKAGE_MODULE, f"torch.empty(64, dtype={dtype})")()
    assert (values == torch.iinfo(dtype).min).all()
    array = compile_as(PACKAGE_MODULE, "np.empty(64, dtype=np.int64)")()
    assert (array == np.iinfo(np.int64).min).all()


def test_uninitialised_unsigned_integers_and_booleans_are_filled() -> None:
    assert (compile_as(PACKAGE_MODULE, "torch.empty(64, dtype=torch.uint8)")() == 255).all()
    assert (compile_as(PACKAGE_MODULE, "np.empty(64, dtype=np.uint32)")() == 2**32 - 1).all()
    assert compile_as(PACKAGE_MODULE, "torch.empty(64, dtype=torch.bool)")().all()
    assert compile_as(PACKAGE_MODULE, "np.empty(64, dtype=bool)")().all()


def test_resize_poisons_only_the_new_elements() -> None:
    values = compile_as(PACKAGE_MODULE, "torch.ones(3).resize_(8)")()
    assert values[:3].tolist() == [1.0, 1.0, 1.0]
    assert torch.isnan(values[3:]).all()


def test_meta_tensors_are_left_alone() -> None:
    assert compile_as(PACKAGE_MODULE, "torch.empty(64, device='meta')")().shape == (64,)


def test_memory_of_other_packages_is_not_filled() -> None:
    # A fill would write into `out`; the caller's zeros must survive.
    expression = "torch.empty(4, out=torch.zeros(4))"
    assert compile_as(FOREIGN_MODULE, expression)().tolist() == [0.0] * 4
    assert torch.isnan(compile_as(PACKAGE_MODULE, expression)()).all()


def test_removal_restores_every_original() -> None:
    # A second layer of guards over the session's: removing it must leave the session's in place.
    before = (torch.empty, torch.Tensor.uniform_, np.random.rand, random.random)
    second = Guards()
    second.install()
    assert second.installed
    assert torch.empty is not before[0]
    second.remove()
    assert not second.installed
    assert (torch.empty, torch.Tensor.uniform_, np.random.rand, random.random) == before


def test_installing_twice_is_an_error() -> None:
    second = Guards()
    second.install()
    try:
        with pytest.raises(RuntimeError, match="installed already"):
            second.install()
    finally:
        second.remove()


def test_only_files_with_gpu_tests_are_imported_for_a_gpu_run(tmp_path: Path) -> None:
    with_one, without = tmp_path / "test_with.py", tmp_path / "test_without.py"
    with_one.write_text("@pytest.mark.gpu\ndef test_it(): ...\n", encoding="utf-8")
    without.write_text("import a_package_that_is_not_there\n", encoding="utf-8")
    for expression, ignored in (("gpu", [False, True]), ("not gpu", [False, False]), ("", [False, False])):
        config: Any = SimpleNamespace(option=SimpleNamespace(markexpr=expression))
        answers = [bool(conftest.pytest_ignore_collect(path, config)) for path in (with_one, without)]
        assert answers == ignored
