"""The drafters that this package brings along, trained for the embedded model on its own text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from draftproof.errors import ParameterError
from draftproof.targets.embedded import NAME, is_embedded

FOLDER: Final = Path(__file__).with_name("weights")
"""One folder a method, each with its weights, config, training log and model card."""


def own_methods() -> tuple[str, ...]:
    """The methods that there is a drafter of, in alphabetical order."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/config.json")))


def own_drafter(method: str, target: Any) -> str:
    """The folder of our drafter of that method.

    Raises ParameterError for another target than the embedded model, or a method that none is there of.
    """
    if not is_embedded(str(getattr(target.model.config, "_name_or_path", ""))):
        raise ParameterError(
            "model", None, f"a drafter's folder or hub name with the method {method} and this target",
            f"the drafters that come with this package are for the embedded {NAME} alone",
        )  # fmt: skip
    if method not in own_methods():
        raise ParameterError(
            "model", None, f"a drafter's folder or hub name with the method {method}",
            f"this package brings along drafters of the methods {', '.join(own_methods()) or 'none'}",
        )  # fmt: skip
    return str(FOLDER / method)
