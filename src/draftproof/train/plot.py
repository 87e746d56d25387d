"""The run's loss and acceptance as one SVG file, drawn here: no plotting library, nothing fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_WIDTH, _HEIGHT, _MARGIN = 640, 220, 48
_COLOURS: Final = {"loss": "#1f5fa8", "acceptance_length": "#b4531a", "greedy_length": "#2c7a4b"}


def write_plot(path: Path, records: Sequence[dict[str, Any]], title: str) -> None:
    """records: with "step" and any of loss, acceptance_length, greedy_length. Two panels over the steps."""
    panels = [
        _panel(records, ("loss",), "loss", 0),
        _panel(records, ("acceptance_length", "greedy_length"), "tokens a pass (bonus counted)", _HEIGHT),
    ]
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{2 * _HEIGHT + 24}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_MARGIN}" y="16" font-size="14">{title}</text><g transform="translate(0,24)">'
        + "".join(panels)
        + "</g></svg>\n"
    )
    work = path.with_suffix(".tmp")
    work.write_text(text, encoding="utf-8")
    os.replace(work, path)


def _panel(records: Sequence[dict[str, Any]], names: Sequence[str], label: str, top: int) -> str:
    points = {name: [(r["step"], r[name]) for r in records if name in r] for name in names}
    every = [point for series in points.values() for point in series]
    if not every:
        return ""
    steps, values = [step for step, _ in every], [value for _, value in every]
    low, high, last = min(values), max(values), max(steps)
    span, reach = (high - low) or 1.0, last or 1

    def at(step: float, value: float) -> str:
        x = _MARGIN + (_WIDTH - 2 * _MARGIN) * step / reach
        y = top + _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - low) / span
        return f"{x:.1f},{y:.1f}"

    bottom, right = top + _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    parts = [
        f'<path d="M{_MARGIN},{top + _MARGIN} V{bottom} H{right}" fill="none" stroke="#444"/>',
        f'<text x="4" y="{top + _MARGIN}">{high:.3g}</text><text x="4" y="{bottom}">{low:.3g}</text>',
        f'<text x="{right - 60}" y="{bottom + 16}">step {last}</text>',
        f'<text x="{_MARGIN}" y="{top + _MARGIN - 8}">{label}</text>',
    ]
    for index, (name, series) in enumerate(points.items()):
        line = " ".join(at(step, value) for step, value in series)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[name]}" stroke-width="1.5"/>')
        if len(names) > 1:
            x, y = right - 150, top + _MARGIN + 16 * index
            parts.append(f'<text x="{x}" y="{y}" fill="{_COLOURS[name]}">{name.replace("_", " ")}</text>')
    return "".join(parts)
