"""Lines of tokens per pass over nodes, as SVG: no library, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

Series = Sequence[tuple[int, float, float]]
"""(nodes, tokens per pass, half-width), by nodes."""

WIDTH: Final = 720
HEIGHT: Final = 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 250, 40, 44
_COLOURS: Final = (
    "#1b6ca8", "#c8553d", "#3a7d44", "#7b4b94", "#b8860b", "#2b2b2b", "#0f8b8d", "#a23b72", "#6b705c", "#8d99ae",
)  # fmt: skip


def plot(title: str, lines: Mapping[str, Series]) -> str:
    """An SVG document. Nodes are on a scale of powers of two."""
    points = [point for series in lines.values() for point in series]
    if not points:
        return ""
    low_x, high_x = math.log2(min(p[0] for p in points)), math.log2(max(p[0] for p in points))
    high_y = max(p[1] + (p[2] if math.isfinite(p[2]) else 0.0) for p in points)
    low_y = min(1.0, min(p[1] for p in points))
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0

    def x_of(nodes: int) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log2(nodes) - low_x) / span_x

    def y_of(value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * (value - low_y) / span_y

    parts = [_frame(title)]
    for nodes in sorted({point[0] for point in points}):
        parts.append(f'<text x="{x_of(nodes):.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{nodes}</text>')
    for step in range(5):
        value = low_y + span_y * step / 4
        y = y_of(value)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.1f}</text>')
        parts.append(f'<path d="M{_LEFT} {y:.1f} H{WIDTH - _RIGHT}" stroke="#ddd"/>')
    for index, (name, series) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{x_of(n):.1f},{y_of(v):.1f}" for n, v, _ in series)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for nodes, value, half in series:
            x = x_of(nodes)
            parts.append(f'<circle cx="{x:.1f}" cy="{y_of(value):.1f}" r="3" fill="{colour}"/>')
            if math.isfinite(half) and half > 0:
                ends = f"M{x:.1f} {y_of(value - half):.1f} V{y_of(value + half):.1f}"
                parts.append(f'<path d="{ends}" stroke="{colour}" stroke-opacity=".5"/>')
        y = _TOP + 16 * index
        parts.append(f'<text x="{WIDTH - _RIGHT + 14}" y="{y + 4}" fill="{colour}">{escape(name)}</text>')
    return "".join(parts) + "</svg>\n"


def _frame(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 8}">drafted tokens in a pass; up: tokens per pass, 95 % intervals</text>'
    )
