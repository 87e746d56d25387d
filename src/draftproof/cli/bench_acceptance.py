"""`draftproof bench acceptance`: tokens per pass by kind of prompt, and on wish the speed against plain decoding."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import click

from draftproof.cli.engine_flags import engine_config
from draftproof.cli.loading import model_name, open_engine, versions
from draftproof.cli.output import counted_progress, new_table, note, print_document, print_table
from draftproof.cli.values import Number, numbers, words
from draftproof.cli.verb import verb
from draftproof.config import LEARNED_METHODS, METHODS, VERIFIERS, SpeculativeConfig
from draftproof.errors import ParameterError

_EXAMPLES = (
    "draftproof bench acceptance --num-per-kind 5",
    "draftproof bench acceptance --method dspark --draft-model ./drafter --lengths 3,7 --out figures",
    "draftproof bench acceptance --method ngram,suffix --prompts prompts.jsonl --speed --json",
)
_COLUMNS = ("method", "verifier", "drafted", "setting", "kind", "prompts", "tokens per pass", "speed over plain")


# fmt: off
@verb("acceptance", examples=_EXAMPLES)
@click.option("-m", "--model", metavar="MODEL", help="The target. [default: the embedded model]")
@click.option("--dtype", help="Of the target. [default: auto]")
@click.option("--device", help="cpu, cuda, … [default: cpu]")
@click.option("--invariant/--no-invariant", default=None,
              help="See draftproof generate --help. [default: on below float32]")
@click.option("--method", "methods", metavar="METHOD,…", default="dspark", show_default=True, help="How to draft.")
@click.option("--draft-model", "-md", metavar="MODEL",
              help="A learned drafter's folder or a draft model, for one method. [default: ours, of the embedded one]")
@click.option("--lookup-first", type=Number(int),
              help="See draftproof generate --help; for the methods with weights. [default: never]")
@click.option("--noise-weight", type=Number(float), help="See draftproof generate --help. [default: 1]")
@click.option("--verifiers", metavar="VERIFIER,…", default="keyed", show_default=True, help="How to verify.")
@click.option("--lengths", metavar="N,…", default="7", show_default=True, help="Drafted tokens per pass.")
@click.option("--draft-length", default="fixed", show_default=True, metavar="{auto,fixed}",
              help="fixed drafts so many in each pass, auto at most so many.")
@click.option("--temperatures", metavar="T,…", default="0,0.7,1", show_default=True, help="One setting for each.")
@click.option("--top-ps", metavar="P,…", default="1,1,0.95", show_default=True,
              help="One for each temperature, or one for all.")
@click.option("--prompts", type=click.Path(path_type=Path),
              help='JSON lines with "prompt" and "kind". [default: twenty of each of six kinds]')
@click.option("--num-per-kind", type=Number(int), help="The first so many prompts of each kind. [default: all]")
@click.option("--max-tokens", type=Number(int), default=128, show_default=True, help="Tokens for each prompt, at most.")
@click.option("--max-num-seqs", type=Number(int), default=8, show_default=True, help="Prompts decoded at once.")
@click.option("--speed", is_flag=True,
              help="Also decode each prompt alone, plainly and with drafts, and compare the time.")
@click.option("--seed", type=Number(int), default=1, show_default=True, help="Of the first prompt; others follow.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for acceptance.json, acceptance.md and plots.")
# fmt: on
def acceptance(**given: Any) -> None:
    """Measure how many tokens a pass of the target yields.

    Tokens per pass count the bonus token; intervals are 95 %, over prompts. Speed is tokens per second over plain
    decoding's, one prompt at a time on an otherwise idle machine; under keyed the run fails if a single token differs.
    """
    configs, settings = _configs(given), _settings(given)
    prompts = _prompts(given)
    engine = engine_config({**given, "max_model_len": None})
    plain = open_engine(engine, None)
    found = []
    for config, params in product(configs, settings):
        found += [figure.as_dict() for figure in _measured(plain, config, prompts, params, given["speed"])]
    document = {
        "model": model_name(engine),
        "dtype": str(plain.target.dtype).removeprefix("torch."),
        "invariant": bool(getattr(plain.target, "invariant", False)),
        "draft_model": given["draft_model"],
        "lookup_first": given["lookup_first"],
        "noise_weight": given["noise_weight"],
        "prompts": "built-in" if given["prompts"] is None else given["prompts"].name,
        "max_tokens": given["max_tokens"],
        "seed": given["seed"],
        "figures": found,
        "versions": versions(),
    }
    if given["out"] is not None:
        _write(given["out"], document)
    if given["json"]:
        print_document(document)
        return
    table = new_table(*_COLUMNS)
    for row in _rows(found):
        table.add_row(*row)
    print_table(table)


def _configs(given: Mapping[str, Any]) -> list[SpeculativeConfig]:
    methods, verifiers = words(given, "methods", METHODS), words(given, "verifiers", VERIFIERS)
    with_model = [name for name in methods if name in ("draft_model", *LEARNED_METHODS)]
    if given["draft_model"] is not None and len(with_model) != 1:
        raise ParameterError("draft_model", given["draft_model"], "given with exactly one method that takes one")
    if given["lookup_first"] is not None and not with_model:
        raise ParameterError("lookup_first", given["lookup_first"], "given with a method that has weights")
    return [
        SpeculativeConfig(
            method=method,
            model=given["draft_model"] if method in with_model else None,
            lookup_first=given["lookup_first"] if method in with_model else None,
            verifier=verifier,
            num_speculative_tokens=length,
            draft_length=given["draft_length"],
            noise_weight=given["noise_weight"],
        )
        for method, verifier, length in product(methods, verifiers, numbers(given, "lengths", int))
    ]


def _settings(given: Mapping[str, Any]) -> list[Any]:
    from draftproof.params import SamplingParams

    temperatures, top_ps = numbers(given, "temperatures", float), numbers(given, "top_ps", float)
    if len(top_ps) not in (1, len(temperatures)):
        raise ParameterError("top_ps", given["top_ps"], f"one, or {len(temperatures)}, one for each temperature")
    pairs = zip(temperatures, top_ps * (len(temperatures) if len(top_ps) == 1 else 1), strict=True)
    return [
        SamplingParams(temperature=temperature, top_p=top_p, seed=given["seed"], max_tokens=given["max_tokens"])
        for temperature, top_p in pairs
    ]


def _prompts(given: Mapping[str, Any]) -> list[Any]:
    from draftproof.bench.prompts import built_in
    from draftproof.bench.trees import read_prompts

    if given["prompts"] is None:
        return built_in(given["num_per_kind"])
    return read_prompts(given["prompts"], given["num_per_kind"])


def _measured(plain: Any, config: SpeculativeConfig, prompts: Sequence[Any], params: Any, speed: bool) -> list[Any]:
    from draftproof.bench.acceptance import decode, figures
    from draftproof.bench.speed import time_both, with_speed
    from draftproof.drafters import make_drafter

    drafter = make_drafter(config, plain.target, plain.tokenizer, plain.chain)
    what = f"{config.method} {config.verifier} {config.num_speculative_tokens} T={params.temperature:g}"
    with counted_progress(what) as advance:
        found = figures(decode(plain, drafter, config, prompts, params, advance), config, params)
    if speed:
        with counted_progress(f"{what}, speed") as advance:
            found = with_speed(found, time_both(plain, drafter, config, prompts, params, advance))
    return found


def _setting(item: Mapping[str, Any]) -> str:
    return f"T={item['temperature']:g}" + (f", top-p {item['top_p']:g}" if item["top_p"] < 1 else "")


def _rows(found: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    for item in found:
        yield [
            item["method"],
            item["verifier"],
            f"{item['num_speculative_tokens']} {item['draft_length']}",
            _setting(item),
            item["kind"],
            str(item["num_prompts"]),
            _with_interval(item["tokens_per_pass"], item["half_width"]),
            "" if item["speedup"] is None else _with_interval(item["speedup"], item["speedup_half_width"]),
        ]


def _with_interval(value: float, half_width: float) -> str:
    return f"{value:.2f} ±{half_width:.2f}" if half_width < 1e6 else f"{value:.2f}"


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    from draftproof.bench.plots import plot

    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(document, indent=1, default=str).replace("Infinity", "null")
        (folder / "acceptance.json").write_text(text + "\n", encoding="utf-8")
        lines = [f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}"]
        lines += [f"| {' | '.join(row)} |" for row in _rows(document["figures"])]
        (folder / "acceptance.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for index, (title, series) in enumerate(_plotted(document["figures"]).items()):
            (folder / f"acceptance-{index + 1}.svg").write_text(plot(title, series), encoding="utf-8")
    except OSError as error:
        raise ParameterError("out", str(folder), "a folder that can be written", str(error)) from error
    note(f"wrote {folder}")


def _plotted(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    """Method and setting -> kind -> points over the draft's length."""
    plots: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for item in found:
        title = f"{item['method']}, {item['verifier']}, {_setting(item)}"
        point = (int(item["num_speculative_tokens"]), float(item["tokens_per_pass"]), float(item["half_width"]))
        plots.setdefault(title, {}).setdefault(str(item["kind"]), []).append(point)
    return plots
