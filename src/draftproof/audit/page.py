"""The report as one self-contained HTML file: no script, no network, readable without style."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

from draftproof import ParameterError
from draftproof.audit.svg import svg
from draftproof.audit.verdict import Audit, Table

_STYLE: Final = """
.draftproof{font:15px/1.45 system-ui,sans-serif;max-width:60rem;margin:1.5rem auto;padding:0 1rem}
.draftproof{color:#1b1b1b;background:#fff}
.draftproof table{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}
.draftproof th,.draftproof td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid #ddd}
.draftproof .verdict{font-size:1.3rem;font-weight:600}.draftproof .bad{color:#a11}.draftproof .good{color:#176317}
.draftproof pre{background:#f4f4f4;padding:.6rem;overflow-x:auto;font-size:12px}
.draftproof svg{width:100%;height:auto;max-width:40rem}.draftproof svg text{font:11px system-ui,sans-serif;fill:#333}
.draftproof .bar{fill:#5b7fa6}.draftproof .line{fill:none;stroke:#2c5a8c;stroke-width:2}
.draftproof .level{stroke:#a11;stroke-dasharray:5 4}.draftproof .axis{fill:none;stroke:#999}
"""
_TONE: Final = {0: "good", 1: "bad", 3: ""}


def page(audit: Audit) -> str:
    """The report as HTML."""
    body = [
        f"<h1>Audit of {escape(audit.engine)}: {escape(audit.mode)}</h1>",
        f'<p class="verdict {_TONE[audit.exit_code]}">{escape(audit.verdict.value)}</p><p>{escape(audit.summary)}</p>',
    ]
    if audit.findings:
        found = tuple((f.what, f.where, f.p_value, f.effect, f.unit) for f in audit.findings)
        body.append(_table(Table("Findings", ("what", "where", "adjusted p", "effect", "unit"), found)))
    if audit.causes:
        rows = tuple((cause.name, cause.likeness, cause.source) for cause in audit.causes)
        body.append(_table(Table("Likely causes", ("cause", "likeness", "after"), rows)))
    if audit.refused:
        body.append(_table(Table("Refused by the engine", ("setting", "its words"), audit.refused)))
    body.append(_table(Table("Numbers", ("what", "value"), tuple(audit.numbers.items()))))
    body += [f"<h2>{escape(plot.title)}</h2>{svg(plot)}" for plot in audit.plots]
    body += [_table(table) for table in audit.tables]
    body.append(_table(Table("Plan", ("what", "value"), tuple(audit.plan.items()))))
    body.append(_table(Table("Settings", ("name", "parameters"), tuple(audit.settings.items()))))
    if audit.chain:
        body.append(f"<h2>The sampler chain that is meant</h2><pre>{escape(audit.chain)}</pre>")
    if audit.limits:
        body.append("<h2>What this audit can't see</h2><ul>" + "".join(f"<li>{escape(x)}</li>" for x in audit.limits))
        body.append("</ul>")
    if audit.reproduction:
        body.append(f"<h2>Reproduction</h2><pre>{escape(audit.reproduction)}</pre>")
    inner = "\n".join(body)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>Audit of {escape(audit.engine)}</title><style>{_STYLE}</style></head>"
        f'<body><main class="draftproof">\n{inner}\n</main></body></html>\n'
    )


def write_page(audit: Audit, path: str | Path) -> None:
    """Writes the HTML file. Raises ParameterError if it can't be written."""
    try:
        Path(path).write_text(page(audit), encoding="utf-8")
    except OSError as error:
        raise ParameterError("html", str(path), "a file that can be written", str(error)) from error


def shown(value: Any) -> str:
    """A value in a cell: four significant figures for a number that is not whole."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(f"<td>{escape(shown(v))}</td>" for v in row) + "</tr>" for row in table.rows)
    return f"<h2>{escape(table.title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
