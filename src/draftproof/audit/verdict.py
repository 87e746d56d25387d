"""What an audit says: a verdict, its findings, and everything that a report prints.

Exit codes: 0 consistent with lossless, 1 not lossless, 3 inconclusive (2 is a usage error's).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class Verdict(Enum):
    """The value is what reports print."""

    CONSISTENT = "consistent with lossless"
    NOT_LOSSLESS = "not lossless"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return {Verdict.CONSISTENT: 0, Verdict.NOT_LOSSLESS: 1, Verdict.INCONCLUSIVE: 3}[self]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a lossless engine doesn't do.

    what: in words. where: which tokens, setting or request. p_value: adjusted for all hypotheses, 0 for what is
    impossible. effect, unit: how large, in what.
    """

    what: str
    where: str
    p_value: float
    effect: float
    unit: str


@dataclass(frozen=True, slots=True)
class Cause:
    """What the evidence looks like. likeness: 0 to 1. source: the bug that it is named after."""

    name: str
    likeness: float
    source: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a report."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Data of a plot.

    kind: "bars" (with an expected level) or "line" (with a threshold). level: where the line is drawn.
    """

    title: str
    kind: str
    x_label: str
    y_label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    level: float | None = None
    level_label: str = ""


@dataclass(frozen=True, slots=True)
class Audit:
    """The result of one audit, ready for the terminal, JSON and HTML.

    numbers: by name, in the order of printing. refused: (setting, the engine's words). limits: what this audit can't
    see. chain: the sampler chain that "lossless" is said of, None where none is. settings: what was asked, as plain
    values.
    """

    mode: str
    engine: str
    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...] = ()
    causes: tuple[Cause, ...] = ()
    plan: dict[str, Any] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    limits: tuple[str, ...] = ()
    chain: str | None = None
    reproduction: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """As the command line ends."""
        return self.verdict.exit_code

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "verdict": self.verdict.value, "exit_code": self.exit_code}

    def _repr_html_(self) -> str:
        """Notebooks show the report itself."""
        from draftproof.audit.page import page

        return page(self)


def decide(findings: Sequence[Finding], *, complete: bool) -> Verdict:
    """Any finding decides; otherwise only a completed audit says "consistent"."""
    if findings:
        return Verdict.NOT_LOSSLESS
    return Verdict.CONSISTENT if complete else Verdict.INCONCLUSIVE
