"""The replay matrix: temperatures, filters, drafters. The tests' and the benchmark's one list."""

from __future__ import annotations

from typing import Any

TEMPERATURES = (0.0, 0.7, 1.0)
FILTERS: dict[str, dict[str, Any]] = {
    "no filter": {},
    "top-p .95": {"top_p": 0.95},
    "top-k 20, top-p .9": {"top_k": 20, "top_p": 0.9},
    "min-p .05": {"min_p": 0.05},
    "repetition 1.3, presence .5": {"repetition_penalty": 1.3, "presence_penalty": 0.5},
}
METHODS = ("ngram", "suffix", "draft_model")
SETTINGS = {
    f"T={temperature} {name}": {"temperature": temperature, **filters}
    for temperature in TEMPERATURES
    for name, filters in FILTERS.items()
}
