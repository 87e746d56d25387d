"""An audit on the terminal, as JSON, and as an HTML file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from draftproof.cli.loading import versions
from draftproof.cli.output import Advance, new_table, note, print_document, print_table, write

if TYPE_CHECKING:
    from draftproof.audit.verdict import Audit, Table

_MOST_ROWS: Final = 14


def report(audit: Audit, *, as_json: bool, html: str | None) -> None:
    """Prints `audit`, writes its page, and ends with its exit code where that isn't 0."""
    from draftproof.audit.page import write_page

    if html is not None:
        write_page(audit, html)
        note(f"the report is in {html}")
    if as_json:
        print_document({**audit.to_dict(), "versions": versions()})
    else:
        _print(audit)
    if audit.exit_code:
        raise click.exceptions.Exit(audit.exit_code)


class Announcer:
    """What is said on stderr before the first token, and of the time once the first ones are in.

    advance: the progress that goes on. timed: whether to say how long it will take, by the rate of the first tokens.
    """

    def __init__(self, advance: Advance, *, timed: bool = True) -> None:
        self._advance, self._timed = advance, timed
        self._began = 0.0

    def on_plan(self, plan: Mapping[str, Any]) -> None:
        """The plan, on one line."""
        note(_plan(plan))
        self._began = time.perf_counter()

    def progress(self, num_done: int, num_all: int) -> None:
        """Passes on how far it is."""
        if self._timed and 0 < num_done < num_all:
            self._timed = False
            seconds = (time.perf_counter() - self._began) * num_all / num_done
            note(f"about {_minutes(seconds)} in all, by the rate of the first {num_done:,}")
        self._advance(num_done, num_all)


def _plan(plan: Mapping[str, Any]) -> str:
    from draftproof.audit.page import shown

    return "plan: " + ", ".join(f"{name} {shown(value)}" for name, value in plan.items() if value is not None)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _print(audit: Audit) -> None:
    write(f"{audit.mode} audit of {audit.engine}\n\n")
    if audit.plan:
        write(_plan(audit.plan) + "\n")
    if audit.chain:
        write(f"\nlossless with respect to this chain:\n{audit.chain}\n\n")
    _rows("numbers", ("what", "value"), tuple(audit.numbers.items()))
    for table in audit.tables:
        _table(table)
    found = tuple((f.what, f.where, f.p_value, f.effect, f.unit) for f in audit.findings)
    _rows("findings", ("what", "where", "adjusted p", "effect", "unit"), found)
    _rows("likely causes", ("cause", "likeness", "after"), tuple((c.name, c.likeness, c.source) for c in audit.causes))
    _rows("refused by the engine", ("setting", "its words"), audit.refused)
    if audit.reproduction:
        write(f"reproduction:\n{audit.reproduction}\n")
    for limit in audit.limits:
        write(f"not seen by this audit: {limit}\n")
    write(f"\nverdict: {audit.verdict.value} ({audit.summary})\n")


def _table(table: Table) -> None:
    _rows(table.title, table.columns, table.rows[:_MOST_ROWS])
    if len(table.rows) > _MOST_ROWS:
        write(f"and {len(table.rows) - _MOST_ROWS} more rows; --json and --html have all\n")


def _rows(title: str, columns: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> None:
    from draftproof.audit.page import shown

    if not rows:
        return
    table = new_table(*columns, title=title)
    for row in rows:
        table.add_row(*(shown(value) for value in row))
    print_table(table)
