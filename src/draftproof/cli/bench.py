"""`draftproof bench`: measurements on this machine. `trees` sets ways of drafting and verifying side by side;
`acceptance` is in a file of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from draftproof.cli.bench_acceptance import acceptance
from draftproof.cli.engine_flags import engine_config
from draftproof.cli.loading import model_name, open_engine, versions
from draftproof.cli.output import counted_progress, new_table, note, print_document, print_table, write
from draftproof.cli.values import Number, numbers, words
from draftproof.cli.verb import SETTINGS, VerbGroup, verb
from draftproof.config import CHAIN_VERIFIERS, LOOKUP_METHODS, METHODS, TREE_BUILDERS, TREE_VERIFIERS
from draftproof.errors import ParameterError

_EXAMPLES = (
    "draftproof bench trees --simulate --out figures",
    "draftproof bench trees --draft-model ./drafter --prompts prompts.jsonl --temperatures 0,0.7,1 --out figures",
    "draftproof bench trees --method suffix --nodes 8,32 --num-per-kind 2 --max-tokens 64 --json",
)
_RIVALS = ("match", *CHAIN_VERIFIERS, *TREE_VERIFIERS)


@click.group("bench", cls=VerbGroup, context_settings=SETTINGS, examples=_EXAMPLES[:1])
def bench() -> None:
    """Measure, on this machine."""


# fmt: off
@verb("trees", examples=_EXAMPLES)
@click.option("--simulate", is_flag=True, help="Markov chains instead of models: the same rules, no weights needed.")
@click.option("-m", "--model", metavar="MODEL", help="The target. [default: the embedded model]")
@click.option("--dtype", help="Of the target. [default: auto]")
@click.option("--device", help="cpu, cuda, … [default: cpu]")
@click.option("--method", metavar="METHOD", help="How to draft. [default: suffix, or draft_model with --draft-model]")
@click.option("--draft-model", "-md", metavar="MODEL", help="A draft model, or a learned drafter's folder.")
@click.option("--prompts", type=click.Path(path_type=Path), help='JSON lines with "prompt" and "kind".')
@click.option("--num-per-kind", type=Number(int), help="The first so many prompts of each kind. [default: all]")
@click.option("--max-tokens", type=Number(int), default=128, show_default=True, help="Tokens for each prompt.")
@click.option("--temperatures", default="0,0.7,1", show_default=True, help="One run of the grid for each.")
@click.option("--top-p", type=Number(float), default=1.0, show_default=True, help="At every temperature.")
@click.option("--nodes", default="8,16,32,64", show_default=True, help="Drafted tokens of a tree.")
@click.option("--noise-weights", default="0,0.5,1", show_default=True, help="zeta, under keyed.")
@click.option("--builders", default="best_first", show_default=True, help=f"Of {', '.join(TREE_BUILDERS)}.")
@click.option("--verifiers", default=",".join(_RIVALS), help="The rivals. [default: all]")
@click.option("--seed", type=Number(int), default=1, show_default=True, help="Of the first prompt; others follow.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for trees.json, trees.md and plots.")
# fmt: on
def trees(**given: Any) -> None:
    """Compare trees, chains and verifiers, at equal numbers of drafted tokens.

    Tokens per pass count the bonus token. Each prompt is decoded alone, with the same seed in every cell; intervals are
    over prompts. Without --prompts, a few built-in ones. What to take from it is printed last: which verifier a user
    should choose is advice, never a switch at run time.
    """
    document = _simulated(given) if given["simulate"] else _measured(given)
    document["versions"] = versions()
    if given["out"] is not None:
        _write(given["out"], document)
    if given["json"]:
        print_document(document)
        return
    _print(document["figures"])
    for line in document["advice"]:
        write(f"{line}\n")


bench.add_command(trees)
bench.add_command(acceptance)


def _simulated(given: Mapping[str, Any]) -> dict[str, Any]:
    from draftproof.bench.simulation.budgets import budget_table
    from draftproof.bench.simulation.tables import autoregressive_table, factorised_table

    found = []
    tables = (
        ("autoregressive", autoregressive_table()),
        ("autoregressive, equal budgets", budget_table()),
        ("factorised", factorised_table()),
    )
    for name, table in tables:
        for figure in table:
            found.append({"drafter": name, "setting": figure.world, **figure.as_dict()})
    lines = [
        f"{drafter}, {setting}: most by {best['rule']}, {best['num_nodes']} nodes, "
        f"{best['tokens_per_pass']:.2f} tokens per pass"
        for drafter, setting in dict.fromkeys((item["drafter"], item["setting"]) for item in found)
        for best in [
            max(
                (i for i in found if (i["drafter"], i["setting"]) == (drafter, setting)),
                key=lambda i: i["tokens_per_pass"],
            )
        ]
    ]
    return {"simulated": True, "figures": found, "advice": lines}


def _measured(given: Mapping[str, Any]) -> dict[str, Any]:
    from draftproof.bench.grid import cells
    from draftproof.bench.prompts import BUILT_IN
    from draftproof.bench.trees import advice, figures, measure, read_prompts
    from draftproof.drafters import make_drafter
    from draftproof.params import SamplingParams

    method = _method(given)
    prompts = BUILT_IN if given["prompts"] is None else read_prompts(given["prompts"], given["num_per_kind"])
    nodes, weights = numbers(given, "nodes", int), numbers(given, "noise_weights", float)
    temperatures = numbers(given, "temperatures", float)
    builders, rivals = words(given, "builders", TREE_BUILDERS), words(given, "verifiers", _RIVALS)
    config = engine_config({**given, "max_model_len": None, "invariant_width": max([*nodes, 15]) + 1})
    plain = open_engine(config, None)
    from draftproof.config import SpeculativeConfig

    drafter = make_drafter(SpeculativeConfig(**method), plain.target, plain.tokenizer, plain.chain)
    found = []
    for temperature in temperatures:
        params = SamplingParams(
            temperature=temperature, top_p=given["top_p"], seed=given["seed"], max_tokens=given["max_tokens"]
        )
        grid = list(
            cells(
                nodes, weights, builders, rivals, greedy=temperature == 0, is_lookup=method["method"] in LOOKUP_METHODS
            )
        )
        with counted_progress(f"T={temperature:g}") as advance:
            done = _counter(advance, len(grid) * len(prompts))
            found += figures(list(measure(plain, drafter, grid, prompts, params, method, done)), drafter.method, params)
    document = {"simulated": False, "model": model_name(config), "drafter": method, "num_prompts": len(prompts)}
    rows = [{**item.as_dict(), "setting": _setting(item.temperature, item.top_p)} for item in found]
    return {**document, "max_tokens": given["max_tokens"], "figures": rows, "advice": advice(found)}


def _counter(advance: Any, num_all: int) -> Any:
    num_done = 0

    def step() -> None:
        nonlocal num_done
        num_done += 1
        advance(num_done, num_all)

    return step


def _method(given: Mapping[str, Any]) -> dict[str, Any]:
    name = given["method"] or ("draft_model" if given["draft_model"] else "suffix")
    if name not in METHODS:
        raise ParameterError("method", name, f"one of {', '.join(METHODS)}")
    return {"method": name, "model": given["draft_model"]}


def _setting(temperature: float, top_p: float) -> str:
    return f"T={temperature:g}" + (f", top-p {top_p:g}" if top_p < 1 else "")


def _rows(found: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for item in found:
        if item.get("kind", "all") != "all":
            continue
        speed = item.get("tokens_per_second")
        half = item["half_width"]
        interval = f"±{half:.2f}" if isinstance(half, float) and half < 1e6 else ""
        yield [
            item["drafter"],
            item["setting"],
            item["rule"],
            str(item["num_nodes"]),
            f"{item['tokens_per_pass']:.2f} {interval}".rstrip(),
            "" if speed is None else f"{speed:.1f}",
        ]


_COLUMNS = ("drafter", "setting", "rule", "nodes", "tokens per pass", "tokens per second")


def _print(found: Sequence[Mapping[str, Any]]) -> None:
    table = new_table(*_COLUMNS)
    for row in _rows(found):
        table.add_row(*row)
    print_table(table)


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    from draftproof.bench.plots import plot

    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, default=str).replace("Infinity", "null")
        (folder / "trees.json").write_text(text + "\n", encoding="utf-8")
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(document["figures"])]
        (folder / "trees.md").write_text("\n".join([*lines, "", *document["advice"]]) + "\n", encoding="utf-8")
        for index, (title, series) in enumerate(_plotted(document["figures"]).items()):
            (folder / f"trees-{index + 1}.svg").write_text(plot(title, series), encoding="utf-8")
    except OSError as error:
        raise ParameterError("out", str(folder), "a folder that can be written", str(error)) from error
    note(f"wrote {folder}")


def _plotted(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """Title -> rule -> points, for each drafter and setting."""
    plots: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for item in found:
        if item.get("kind", "all") == "all":
            lines = plots.setdefault(f"{item['drafter']}, {item['setting']}", {})
            point = (int(item["num_nodes"]), float(item["tokens_per_pass"]), float(item["half_width"]))
            lines.setdefault(str(item["rule"]), []).append(point)
    return plots
