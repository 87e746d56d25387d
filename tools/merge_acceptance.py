"""Puts figures of `draftproof bench acceptance` on parts of the prompts together: one file for the card and the docs.

Run: python -m tools.merge_acceptance OUT acceptance.json acceptance.json …
A rate is tokens over passes, both summed over the parts. An interval's width is that of a sum of independent parts,
each weighed by its passes; what parts differ in by chance is inside their own widths.
"""

import argparse
import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

KEYS = ("method", "verifier", "draft_length", "num_speculative_tokens", "temperature", "top_p")
SAME = ("model", "dtype", "lookup_first", "noise_weight", "max_tokens", "versions")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("parts", type=Path, nargs="+")
    args = parser.parse_args()
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in args.parts]
    for key in SAME:
        if len({json.dumps(document[key], sort_keys=True) for document in documents}) > 1:
            raise SystemExit(f"the parts differ in {key}")
    figures = [figure for document in documents for figure in document["figures"]]

    def order(figure: dict[str, Any]) -> tuple[str, ...]:
        return (*(str(figure[key]) for key in KEYS), "~" if figure["kind"] == "all" else figure["kind"])

    merged = [_merged(list(group)) for _, group in groupby(sorted(figures, key=order), key=order)]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(documents[0] | {"figures": merged}, indent=1) + "\n", encoding="utf-8")
    for figure in merged:
        print(*(figure[key] for key in ("method", "temperature", "top_p", "kind", "num_prompts")),
              f"{figure['tokens_per_pass']:.2f} ± {figure['half_width']:.2f}")  # fmt: skip


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    passes = [part["num_tokens"] / part["tokens_per_pass"] for part in parts]
    total = sum(passes)
    widths = [n / total * part["half_width"] for n, part in zip(passes, parts, strict=True)]
    return parts[0] | {
        "num_prompts": sum(part["num_prompts"] for part in parts),
        "num_tokens": (tokens := sum(part["num_tokens"] for part in parts)),
        "tokens_per_pass": tokens / total,
        "half_width": math.hypot(*widths),
        "by_place": [
            sum(n * share for n, share in zip(passes, shares, strict=True)) / total
            for shares in zip(*(part["by_place"] for part in parts), strict=False)
        ],
    }  # fmt: skip


if __name__ == "__main__":
    main()
