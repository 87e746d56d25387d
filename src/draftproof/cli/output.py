"""What goes where: results on stdout, everything else on stderr; with --json one document, last on stdout."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.table import Table

_TABLE_WIDTH = 120

Advance = Callable[[int, int], None]
"""Called with (done, in all)."""


def note(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def write(text: str) -> None:
    """Text on stdout, at once and unchanged."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_document(document: Mapping[str, Any]) -> None:
    """The one JSON document of a verb, on one line. Infinities and NaN become strings: JSON has none."""
    write(json.dumps(_plain(document), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def wants_colour(stream: TextIO) -> bool:
    """NO_COLOR turns colour off, FORCE_COLOR on; otherwise a terminal has colour unless TERM is dumb."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_table(table: Table) -> None:
    """A table on stdout, as wide as the terminal, or 120 columns where there is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _TABLE_WIDTH
    Console(file=sys.stdout, width=width, no_color=not wants_colour(sys.stdout), highlight=False).print(table)


def new_table(*columns: str, title: str | None = None) -> Table:
    """A plain table whose cells are text, not markup: give them through `add_row`."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


@contextmanager
def counted_progress(what: str) -> Iterator[Advance]:
    """A bar and the time left on stderr if that is a terminal, else nothing. The callback takes (done, in all)."""
    if not sys.stderr.isatty():
        yield lambda num_done, num_all: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda num_done, num_all: bar.update(task, completed=num_done, total=num_all)


@contextmanager
def sign_of_life(what: str) -> Iterator[None]:
    """A moving sign on stderr if that is a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)):
        yield
