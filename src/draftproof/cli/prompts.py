"""The prompt: an argument, or stdin; as it is, or as the user's turn in the model's chat template."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from draftproof.cli.output import note
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.llm import LLM


def read_prompt(argument: str | None) -> str:
    """The argument, or all of stdin without its last line's end. Raises ParameterError if there is no text."""
    if argument is None or argument == "-":
        text = _read_stdin()
    else:
        text = argument
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ParameterError("prompt", text, "UTF-8 text")
    if not text:
        raise ParameterError("prompt", text, "at least one character", 'give it as an argument, "…", or on stdin')
    return text


def _read_stdin() -> str:
    if sys.stdin is None:
        return ""
    if sys.stdin.isatty():
        note("reading the prompt from the terminal; end it with Ctrl-D")
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError("prompt", f"{len(data)} bytes on stdin", "UTF-8 text", str(error)) from error
    return text.removesuffix("\n").removesuffix("\r")


def encode_prompt(llm: LLM, prompt: str, *, raw: bool, system: str | None) -> Sequence[int]:
    """Token ids: of the text itself if `raw` or if the model has no chat template, else of a chat of one turn."""
    if raw or not llm.has_chat_template:
        if system is not None:
            hint = "leave out --raw" if raw else "this model has no chat template: put it into the prompt"
            raise ParameterError("system", system, "given with a chat template", hint)
        return [int(token_id) for token_id in llm.tokenizer(prompt)["input_ids"]]
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return llm.encode_chat(messages)
