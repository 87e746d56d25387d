"""Tool-call dialects: how each template family writes calls. One file each; `TOOL_PARSERS` lists them by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from draftproof.chat.tools.base import MalformedCallError, ToolDialect
from draftproof.chat.tools.hermes import Hermes
from draftproof.chat.tools.llama3 import Llama3
from draftproof.chat.tools.mistral import Mistral
from draftproof.chat.tools.qwen3 import Qwen3
from draftproof.errors import ParameterError

__all__ = ["TOOL_PARSERS", "MalformedCallError", "ToolDialect", "dialect_of_template", "get_dialect"]

TOOL_PARSERS: Final[Mapping[str, ToolDialect]] = MappingProxyType(
    {dialect.name: dialect for dialect in (Mistral(), Llama3(), Qwen3(), Hermes())}
)
"""Every dialect by name; the first one that knows a template is taken."""


def get_dialect(name: str) -> ToolDialect:
    """The dialect of that name. Raises ParameterError, which lists the names."""
    if name not in TOOL_PARSERS:
        raise ParameterError("tool_parser", name, f'"auto", None or one of {", ".join(TOOL_PARSERS)}')
    return TOOL_PARSERS[name]


def dialect_of_template(template: str) -> ToolDialect | None:
    """The dialect in which a chat template writes calls, judged by its markers; None if it is none of them."""
    for dialect in TOOL_PARSERS.values():
        if dialect.is_written_by(template):
            return dialect
    return None
