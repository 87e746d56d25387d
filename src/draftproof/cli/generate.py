"""`draftproof generate`, the default verb: one prompt, one answer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from draftproof.cli.engine_flags import engine_config, engine_flags, speculative_config
from draftproof.cli.failures import FAILED, INTERRUPTED, error_line
from draftproof.cli.loading import open_engine, settings, versions
from draftproof.cli.output import note, print_document
from draftproof.cli.prompts import encode_prompt, read_prompt
from draftproof.cli.sampling_flags import given_fields, sampling_flags, sampling_params
from draftproof.cli.verb import verb
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams

EXAMPLES = (
    'draftproof "Write a limerick about a lighthouse." --seed 1 --temperature 0.7',
    "cat notes.txt | draftproof generate --system 'Summarise the text.' --max-tokens 100",
    "draftproof generate 'Once upon a time' --raw --show-drafts --method suffix -k 5",
    "draftproof generate 'Name three rivers.' --no-speculation --seed 7 --json",
    "draftproof generate 'Hello.' -m ./my-model --draft-model ./my-small-model --dtype bfloat16",
)


@verb("generate", examples=EXAMPLES)
@click.argument("prompt", required=False)
@click.option("--system", metavar="TEXT", help="The system message of the chat template.")
@click.option("--raw", is_flag=True, help="Give the prompt to the model as it is, without its chat template.")
@click.option("--show-drafts", is_flag=True, help="Mark accepted drafts and recovered tokens in the text.")
@click.option("--trace", metavar="FILE", help="Write a JSON line per verified position: p, q, noise, decision.")
@click.option("--stats/--no-stats", default=None, help="Speed and acceptance on stderr. [default: on without --json]")
@engine_flags
@sampling_flags
def generate(**given: Any) -> None:
    """Continue a prompt, or answer it.

    PROMPT is answered if the model has a chat template, and continued otherwise or with --raw. The text is printed as
    it comes. Without PROMPT, or with -, the prompt is read from stdin; one line's end is taken off.
    Flags have vLLM's names; the spellings of llama.cpp, SGLang and mlx-lm are accepted for most.
    """
    params, engine, speculative = sampling_params(given), engine_config(given), speculative_config(given)
    if given["json"] and given["show_drafts"]:
        raise ParameterError("show_drafts", True, "left out with --json", "the document has from_draft for each token")
    check_reported(params, as_json=given["json"])
    prompt = read_prompt(given["prompt"])
    llm = open_engine(engine, speculative)
    prompt_ids = encode_prompt(llm, prompt, raw=given["raw"], system=given["system"])
    params = with_seed(with_model_defaults(llm, given, params))
    if given["json"]:
        _as_document(llm, prompt, prompt_ids, params, given)
    else:
        _as_text(llm, prompt_ids, params, given)


def check_reported(params: SamplingParams, *, as_json: bool) -> None:
    """Raises ParameterError for what only --json can show."""
    if as_json:
        return
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            raise ParameterError(name, getattr(params, name), "left out without --json", "add --json to see them")
    if params.n > 1:
        raise ParameterError("n", params.n, "1 without --json", "add --json to see all samples")
    if not params.detokenize:
        raise ParameterError("detokenize", False, "left on without --json", "add --json to see the ids")


def with_model_defaults(llm: LLM, given: Mapping[str, Any], params: SamplingParams) -> SamplingParams:
    """The same parameters, with the model's own defaults for flags that were left out; says on stderr which."""
    from draftproof.defaults import note_defaults

    fields = {name: value for name, value in llm.default_fields.items() if name not in given_fields(given)}
    note_defaults(fields)
    return replace(params, **fields)


def with_seed(params: SamplingParams) -> SamplingParams:
    """The same parameters with a fresh seed if they have none, so that an interrupted answer has one to name."""
    from draftproof.noise import fresh_seed

    return params if params.seed is not None else replace(params, seed=fresh_seed())


def _as_text(llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, given: Mapping[str, Any]) -> None:
    from draftproof.cli.streaming import legend, stream_answer, style_for
    from draftproof.cli.summary import summary

    style = style_for(sys.stdout) if given["show_drafts"] else None
    if style is not None:
        note(legend())
    answer = stream_answer(llm, prompt_ids, params, style=style, trace=given["trace"])
    if answer.is_interrupted:
        note(f"interrupted after {len(answer.token_ids)} tokens; the text so far stands; seed {params.seed}")
        raise click.exceptions.Exit(INTERRUPTED)
    if answer.error is not None:
        note(error_line(answer.error))
        raise click.exceptions.Exit(FAILED)
    if answer.output is not None and given["stats"] is not False:
        note(summary(answer.output))


def _as_document(
    llm: LLM, prompt: str, prompt_ids: Sequence[int], params: SamplingParams, given: Mapping[str, Any]
) -> None:
    from draftproof.cli.summary import summary
    from draftproof.outputs import GenerationFailed, GenerationInterrupted

    status = 0
    try:
        (output,) = llm.generate([prompt_ids], params, trace=given["trace"])
    except GenerationInterrupted as stopped:
        (output,), status = stopped.outputs, INTERRUPTED
        note(f"interrupted after {len(output.outputs[0].token_ids)} tokens")
    except GenerationFailed as failed:
        (output,), status = failed.outputs, FAILED
        note(error_line(failed))
    if status == 0 and given["stats"]:
        note(summary(output))
    print_document({"prompt": prompt, **output.to_dict(), "settings": settings(llm, params), "versions": versions()})
    raise click.exceptions.Exit(status)
