"""Settings that every test runs under: offline, two threads, fixed examples, guarded memory and randomness.

The guards (tests/surface/guards.py) are installed before any test module is imported, so that `from torch import
empty` in the package is caught as well as `torch.empty`.
"""

import os
from pathlib import Path

# Read by huggingface_hub and transformers when they are first imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

# Triton's interpreter has to be asked for before anything imports Triton.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.surface import guards, interpreter  # noqa: E402
from tests.threads import NUM_THREADS  # noqa: E402

# Derandomized: a property test runs the same examples everywhere, so a failure is never a matter of luck.
hypothesis.settings.register_profile("draftproof", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile("draftproof")
torch.set_num_threads(NUM_THREADS)
if "TRITON_INTERPRET" in os.environ:
    interpreter.hasten()

_guards = guards.Guards()
_guards.install()


def pytest_unconfigure() -> None:
    _guards.remove()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu`, with the reason in the summary, where no CUDA device is present."""
    if torch.cuda.is_available():
        return
    no_gpu = pytest.mark.skip(reason="needs a CUDA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(no_gpu)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Under `-m gpu`, import only files that hold such tests: a GPU machine need not have every dependency."""
    if config.option.markexpr != "gpu" or not collection_path.match("test_*.py"):
        return None
    return True if "mark.gpu" not in collection_path.read_text(encoding="utf-8") else None


@pytest.fixture(autouse=True)
def guarded() -> None:
    """Fail a test that runs after another one has taken a guard away, or changed the number of threads."""
    if not _guards.installed:
        raise RuntimeError("the guards of tests/surface/guards.py were removed by an earlier test")
    if torch.get_num_threads() != NUM_THREADS:
        torch.set_num_threads(NUM_THREADS)
        raise RuntimeError("an earlier test changed torch's number of threads and did not restore it")
