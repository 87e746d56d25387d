"""`draftproof demo`: the same prompts from the same seed, speculation off and on, side by side."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from draftproof.cli.comparison import CASES, Case, Comparison
from draftproof.cli.engine_flags import choice, engine_config, speculative_config
from draftproof.cli.failures import FAILED
from draftproof.cli.loading import guarantee, open_engine, settings, versions
from draftproof.cli.output import new_table, note, print_document, print_table, write
from draftproof.cli.values import Number
from draftproof.cli.verb import verb
from draftproof.config import DTYPES, LEARNED_METHODS, METHODS

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import RequestOutput
    from draftproof.params import SamplingParams

EXAMPLES = ("draftproof demo", "draftproof demo --seed 5 --temperature 1.2", "draftproof demo --method suffix --json")
NUM_WARM_UP_TOKENS = 4
LOOKUP_FIRST = 4


@verb("demo", examples=EXAMPLES)
@click.option("--seed", type=Number(int), default=1, show_default=True, help="The seed of all runs.")
@click.option("--temperature", "--temp", type=Number(float), default=0.7, show_default=True, help="Of all runs.")
@click.option("-n", "--max-tokens", type=Number(int), default=96, show_default=True, help="At most, of each run.")
@click.option(
    "--method",
    metavar=choice([name for name in METHODS if name != "draft_model"]),
    default="dspark",
    show_default=True,
    help="How to draft. dspark, eagle3, dflash and mtp draft with weights that come with the package.",
)
@click.option("--lookup-first", type=Number(int), help="See draftproof generate --help. [default: 4 with the methods "
              "that have weights]")  # fmt: skip
@click.option("-k", "--num-speculative-tokens", type=Number(int), help="Drafted tokens per pass, at most. [default: 8]")
@click.option("--draft-length", metavar="{auto,fixed}", help="See draftproof generate --help. [default: auto]")
@click.option("--dtype", metavar=choice(DTYPES), help="See draftproof generate --help. [default: auto]")
@click.option("--invariant/--no-invariant", default=None,
              help="See draftproof generate --help. [default: on below float32]")  # fmt: skip
def demo(**given: Any) -> None:
    """Decode with speculation off and on, and compare.

    The embedded model decodes each prompt twice from the same seed, and must give the same token ids.
    Shows the tokens that came from drafts, whether the token ids are the same, acceptance and speed. One prompt is
    heavy on copying, where drafts are often right, and one is ordinary. Exit code 1 if any token id differs.
    """
    from draftproof.params import SamplingParams

    params = SamplingParams(temperature=given["temperature"], seed=given["seed"], max_tokens=given["max_tokens"])
    if given["lookup_first"] is None and given["method"] in LEARNED_METHODS:
        given["lookup_first"] = LOOKUP_FIRST
    engine, speculative = engine_config(given), speculative_config(given)
    plain, drafting = open_engine(engine, None), open_engine(engine, speculative)
    described = settings(drafting, params)
    if not given["json"]:
        _introduce(drafting, params, described)
    comparisons = list(_compare(plain, drafting, params, quiet=given["json"]))
    is_same = all(comparison.is_same for comparison in comparisons)
    if given["json"]:
        cases = [comparison.to_dict() for comparison in comparisons]
        print_document({"same_token_ids": is_same, "cases": cases, "settings": described, "versions": versions()})
    else:
        _conclude(comparisons, described)
    if not is_same:
        note(f"error: {_why_they_differ(described)}")
        raise click.exceptions.Exit(FAILED)


def _compare(plain: LLM, drafting: LLM, params: SamplingParams, *, quiet: bool) -> Iterator[Comparison]:
    from dataclasses import replace

    for llm in (plain, drafting):
        llm.chat([{"role": "user", "content": CASES[0].prompt}], replace(params, max_tokens=NUM_WARM_UP_TOKENS))
    for case in CASES:
        if not quiet:
            write(f"\n{case.title}\n{_indented(case.prompt)}\n")
        outputs = []
        for llm, title in ((plain, "speculation off"), (drafting, "speculation on")):
            if not quiet:
                write(f"\n  {title}:\n")
            outputs.append(_run(llm, case, params, quiet=quiet, is_marked=llm is drafting))
        yield Comparison(case, *outputs)


def _run(llm: LLM, case: Case, params: SamplingParams, *, quiet: bool, is_marked: bool) -> RequestOutput:
    from draftproof.cli.streaming import stream_answer, style_for

    messages = [{"role": "user", "content": case.prompt}]
    if quiet:
        return llm.chat(messages, params)[0]
    style = style_for(sys.stdout) if is_marked else None
    answer = stream_answer(llm, llm.encode_chat(messages), params, style=style)
    if answer.error is not None:
        raise answer.error
    if answer.output is None:
        raise KeyboardInterrupt
    return answer.output


def _introduce(llm: LLM, params: SamplingParams, described: Mapping[str, Any]) -> None:
    from draftproof.cli.streaming import legend

    invariant = "invariant" if described["invariant"] else "not invariant"
    write(
        f"{described['model']}, {described['dtype']} on {described['device']}, {invariant}; "
        f"chain {described['chain']}; T={params.temperature:g}, seed {params.seed}\n"
        f"verifier {guarantee(llm, params)}: the same seed must give the same token ids with speculation off and on\n"
        f"marks: {legend()}\n"
    )


def _conclude(comparisons: list[Comparison], described: Mapping[str, Any]) -> None:
    table = new_table(
        "prompt",
        "same token ids",
        "accepted / drafted",
        "mean_acceptance_length *",
        "off tok/s",
        "on tok/s",
        "on / off",
    )
    for comparison in comparisons:
        table.add_row(*comparison.row())
    write("\n")
    print_table(table)
    write("* tokens emitted per speculative pass, the bonus counted; tokens/s from the first token on\n")
    if all(comparison.is_same for comparison in comparisons):
        write(f"the same token ids, all of them ({described['guarantee']} guarantee, {described['dtype']})\n")
        return
    for comparison in comparisons:
        if not comparison.is_same:
            write(f"{comparison.case.name}: the first difference is at output token {comparison.first_difference}\n")


def _why_they_differ(described: Mapping[str, Any]) -> str:
    if described["invariant"]:
        return "the token ids differ; this is a bug, please report it with the output of draftproof env"
    return "the token ids differ: without --invariant, forwards over one row and over many round differently"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
