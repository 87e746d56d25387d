"""Plots as inline SVG: bars with an expected level, lines with a threshold. No script, no font, no network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from draftproof.audit.verdict import Plot

_WIDTH: Final = 640
_HEIGHT: Final = 260
_LEFT: Final = 64
_BOTTOM: Final = 46
_TOP: Final = 14
_RIGHT: Final = 16


def svg(plot: Plot) -> str:
    """One plot, as an <svg> element with a title for readers of screens."""
    log = plot.kind == "log-line"
    xs = [_scaled(x, log) for x in plot.x]
    ys = [_scaled(y, log) for y in plot.y]
    if not xs:
        return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(plot.title)}: no data</title></svg>'
    vertical = plot.kind == "log-line"
    levels = [] if plot.level is None or vertical else [_scaled(plot.level, log)]
    low, high = _range([*ys, *levels, *([0.0] if plot.kind == "bars" else [])])
    left, right = (0.0, 1.0) if plot.kind == "bars" else _range(xs)
    place_x = _placer(left, right, _LEFT, _WIDTH - _RIGHT)
    place_y = _placer(low, high, _HEIGHT - _BOTTOM, _TOP)
    body = _bars(xs, ys, place_x, place_y) if plot.kind == "bars" else _line(xs, ys, place_x, place_y)
    mark = ""
    if plot.level is not None:
        mark = _mark(plot, place_x if vertical else place_y, _scaled(plot.level, log), vertical=vertical)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"><title>{escape(plot.title)}</title>'
        f"{_axes(plot, (left, right), (low, high), place_x, place_y, log)}{body}{mark}</svg>"
    )


def _scaled(value: float, log: bool) -> float:
    return math.log10(max(value, 1e-12)) if log else value


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _placer(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def _bars(xs: Sequence[float], ys: Sequence[float], place_x: Callable[[float], float],
          place_y: Callable[[float], float]) -> str:  # fmt: skip
    width = (place_x(1.0) - place_x(0.0)) / len(xs)
    base = place_y(0.0)
    return "".join(
        f'<rect x="{place_x(x) - width / 2:.1f}" y="{place_y(y):.1f}" width="{max(width - 1, 1):.1f}" '
        f'height="{max(base - place_y(y), 0):.1f}" class="bar"/>'
        for x, y in zip(xs, ys, strict=True)
    )


def _line(xs: Sequence[float], ys: Sequence[float], place_x: Callable[[float], float],
          place_y: Callable[[float], float]) -> str:  # fmt: skip
    points = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in zip(xs, ys, strict=True))
    return f'<polyline points="{points}" class="line"/>'


def _mark(plot: Plot, place: Callable[[float], float], level: float, *, vertical: bool) -> str:
    at = place(level)
    if vertical:
        ends = f'x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"'
        text = f'x="{at + 4:.1f}" y="{_TOP + 10}"'
    else:
        ends = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"'
        text = f'x="{_WIDTH - _RIGHT}" y="{at - 4:.1f}" text-anchor="end"'
    return f'<line {ends} class="level"/><text {text}>{escape(plot.level_label)}</text>'


def _axes(
    plot: Plot,
    across: tuple[float, float],
    up: tuple[float, float],
    place_x: Callable[[float], float],
    place_y: Callable[[float], float],
    log: bool,
) -> str:
    parts = [f'<path d="M{_LEFT},{_TOP} V{_HEIGHT - _BOTTOM} H{_WIDTH - _RIGHT}" class="axis"/>']
    for fraction in (0.0, 0.5, 1.0):
        x, y = across[0] + fraction * (across[1] - across[0]), up[0] + fraction * (up[1] - up[0])
        anchor = {0.0: "start", 0.5: "middle", 1.0: "end"}[fraction]
        parts.append(
            f'<text x="{place_x(x):.1f}" y="{_HEIGHT - _BOTTOM + 15}" text-anchor="{anchor}">{_number(x, log)}</text>'
        )
        parts.append(f'<text x="{_LEFT - 6}" y="{place_y(y) + 4:.1f}" text-anchor="end">{_number(y, log)}</text>')
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(plot.x_label)}</text>')
    middle = (_HEIGHT - _BOTTOM + _TOP) / 2
    parts.append(
        f'<text x="14" y="{middle}" text-anchor="middle" transform="rotate(-90 14 {middle})">'
        f"{escape(plot.y_label)}</text>"
    )
    return "".join(parts)


def _number(value: float, log: bool) -> str:
    shown = 10**value if log else value
    return f"{shown:,.0f}" if abs(shown) >= 1000 else f"{shown:.3g}"
