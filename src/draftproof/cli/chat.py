"""`draftproof chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from draftproof.cli.engine_flags import engine_config, engine_flags, speculative_config
from draftproof.cli.failures import INTERRUPTED, error_line
from draftproof.cli.generate import check_reported, with_model_defaults
from draftproof.cli.loading import model_name, open_engine, settings, versions
from draftproof.cli.output import note, print_document, write
from draftproof.cli.sampling_flags import sampling_flags, sampling_params
from draftproof.cli.verb import verb
from draftproof.errors import DraftproofError, ParameterError

if TYPE_CHECKING:
    from draftproof.cli.conversation import Conversation
    from draftproof.cli.streaming import Answer
    from draftproof.llm import LLM
    from draftproof.params import SamplingParams

EXAMPLES = (
    "draftproof chat",
    "draftproof chat --system 'Answer in one sentence.' --temperature 0.7 --show-drafts",
    "printf 'Hello.\\nAnd in French?\\n' | draftproof chat --seed 3 --json",
)
PROMPT = "> "


@verb("chat", examples=EXAMPLES)
@click.option("--system", metavar="TEXT", help="The system message.")
@click.option("--show-drafts", is_flag=True, help="Mark accepted drafts and recovered tokens in the answers.")
@click.option("--stats/--no-stats", default=None, help="Speed and acceptance on stderr. [default: on without --json]")
@engine_flags
@sampling_flags
def chat(**given: Any) -> None:
    """Talk with a model in the terminal.

    The model needs a chat template. The conversation is kept from turn to turn.
    /reset forgets what was said, /exit or Ctrl-D ends. Ctrl-C stops the answer and keeps what there is of it.
    A line of stdin is a turn. With --json the answers are shown on stderr, and the document has them all.

    One seed serves a conversation: noise goes by absolute position, so a turn never meets noise that was used.
    After /reset positions begin again, with a fresh seed, which is printed.
    """
    params, engine, speculative = sampling_params(given), engine_config(given), speculative_config(given)
    check_reported(params, as_json=given["json"])
    if params.n > 1:
        raise ParameterError("n", params.n, "1 in a chat", "draftproof generate --json has several samples")
    llm = open_engine(engine, speculative)
    if not llm.has_chat_template:
        hint = "draftproof generate continues plain text"
        raise ParameterError("model", model_name(engine), "a model with a chat template for chat", hint)
    params = with_model_defaults(llm, given, params)
    from draftproof.cli.conversation import Conversation

    conversation = Conversation(given["system"], params.seed)
    note(f"{model_name(engine)}; seed {conversation.seed}; /reset, /exit; Ctrl-C stops an answer")
    turns: list[dict[str, Any]] = []
    try:
        _talk(llm, conversation, params, given, turns)
    except KeyboardInterrupt:
        note("\ninterrupted")
        _print_conversation(llm, conversation, params, given, turns)
        raise click.exceptions.Exit(INTERRUPTED) from None
    _print_conversation(llm, conversation, params, given, turns)


def _talk(
    llm: LLM, conversation: Conversation, params: SamplingParams, given: Mapping[str, Any], turns: list[dict[str, Any]]
) -> None:
    """Turn after turn until the input ends; `turns` gets each answer."""
    while (text := _read_line()) is not None:
        command = text.strip()
        if command == "/exit":
            return
        if command == "/reset":
            conversation.reset()
            note(f"forgotten; seed {conversation.seed}")
        elif command:
            turn = _turn(llm, conversation, text, params, given)
            turns += [] if turn is None else [turn]


def _print_conversation(
    llm: LLM, conversation: Conversation, params: SamplingParams, given: Mapping[str, Any], turns: list[dict[str, Any]]
) -> None:
    if given["json"]:
        spoken = {"messages": conversation.messages, "turns": turns}
        print_document({**spoken, "settings": settings(llm, params), "versions": versions()})


def _turn(
    llm: LLM, conversation: Conversation, text: str, params: SamplingParams, given: Mapping[str, Any]
) -> dict[str, Any] | None:
    """One question and its answer; None if no answer was made. A failed turn leaves the conversation as it was."""
    from draftproof.cli.streaming import stream_answer, style_for

    show: Callable[[str], None] = _write_on_stderr if given["json"] else write
    style = style_for(sys.stderr if given["json"] else sys.stdout) if given["show_drafts"] else None
    messages = [*conversation.messages, {"role": "user", "content": text}]
    try:
        prompt_ids = llm.encode_chat(messages)
        if conversation.begin_turn(prompt_ids):
            note(f"note: the conversation takes fewer tokens than were written; seed {conversation.seed} from here on")
        answer = stream_answer(llm, prompt_ids, replace(params, seed=conversation.seed), style=style, show=show)
    except DraftproofError as error:
        if isinstance(error, ParameterError):
            raise
        note(error_line(error))
        return None
    conversation.end_turn(prompt_ids, len(answer.token_ids))
    if answer.error is not None:
        note(error_line(answer.error))
        return None
    conversation.messages = [*messages, {"role": "assistant", "content": answer.text}]
    _report(answer, given)
    return _as_plain(answer, conversation.seed)


def _report(answer: Answer, given: Mapping[str, Any]) -> None:
    from draftproof.cli.summary import summary

    wants_stats = not given["json"] if given["stats"] is None else given["stats"]
    if answer.is_interrupted:
        note(f"interrupted after {len(answer.token_ids)} tokens; the answer so far is kept")
    elif answer.output is not None and wants_stats:
        note(summary(answer.output))


def _as_plain(answer: Answer, seed: int) -> dict[str, Any]:
    if answer.output is not None:
        return answer.output.to_dict()
    return {"text": answer.text, "token_ids": answer.token_ids, "finish_reason": "abort", "seed": seed}


def _read_line() -> str | None:
    """The next line without its end; None at the end of the input. Ctrl-C at the prompt ends the program."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        try:
            import readline  # noqa: F401  editing and history for input()
        except ImportError:
            pass
        try:
            return input(PROMPT)
        except EOFError:
            write("\n")
            return None
    if sys.stderr.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
    line = sys.stdin.readline()
    return line.removesuffix("\n") if line else None


def _write_on_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
