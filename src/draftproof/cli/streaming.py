"""One answer as it comes: text on stdout, marked on request, and what is left of it after a Ctrl-C or an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from draftproof.cli.marks import BRACKETS, COLOUR, MarkedText, Style
from draftproof.cli.output import wants_colour, write
from draftproof.errors import DraftproofError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import RequestOutput, StreamChunk
    from draftproof.params import SamplingParams


@dataclass(slots=True)
class Answer:
    """text: what was shown, without marks. output: as far as it came. error: what ended it early."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    output: RequestOutput | None = None
    error: DraftproofError | None = None
    is_interrupted: bool = False


def style_for(stream: TextIO) -> Style:
    """Colour where `stream` has it, brackets elsewhere."""
    return COLOUR if wants_colour(stream) else BRACKETS


def stream_answer(
    llm: LLM,
    prompt_ids: Sequence[int],
    params: SamplingParams,
    *,
    style: Style | None = None,
    trace: str | None = None,
    show: Callable[[str], None] = write,
) -> Answer:
    """Generates and shows one answer, followed by a line's end.

    style: how tokens from drafts are marked; None shows the text alone. show: takes each piece of text.
    Ctrl-C ends the answer, not the program.
    """
    from draftproof.outputs import GenerationFailed

    answer = Answer()
    marked = None if style is None else _marked(llm, prompt_ids, params, style)
    chunks = llm.stream_generate(prompt_ids, params, trace=trace)
    try:
        for chunk in chunks:
            if chunk.token_id >= 0:
                answer.token_ids.append(chunk.token_id)
                if marked is not None:
                    marked.push(chunk.token_id, chunk.outcome)
            answer.text += chunk.text
            show(chunk.text if marked is None else marked.show(chunk.text))
            answer.output = chunk.output
    except KeyboardInterrupt as stopped:
        answer.is_interrupted = True
        answer.output = _output_so_far(chunks, stopped)
        _show_rest(answer, marked, show)
    except GenerationFailed as error:
        if not answer.token_ids:
            raise
        answer.error, answer.output = error, error.outputs[0]
        _show_rest(answer, marked, show)
    show(f"{marked.close()}\n" if marked is not None else "\n")
    return answer


def _output_so_far(chunks: Iterator[StreamChunk], stopped: KeyboardInterrupt) -> RequestOutput | None:
    """What an interrupted stream leaves: in the exception, or, if Ctrl-C came between two chunks, in the stream."""
    from draftproof.outputs import GenerationInterrupted

    if isinstance(stopped, GenerationInterrupted):
        return stopped.outputs[0]
    try:
        chunks.throw(KeyboardInterrupt())  # type: ignore[attr-defined]  # a generator
    except GenerationInterrupted as error:
        return error.outputs[0]
    except (KeyboardInterrupt, StopIteration):
        pass
    return None


def _show_rest(answer: Answer, marked: MarkedText | None, show: Callable[[str], None]) -> None:
    """The text that was held back: it could have begun a stop string, or ended inside a character."""
    if answer.output is None:
        return
    completion = answer.output.outputs[0]
    for token_id, outcome in list(zip(completion.token_ids, completion.outcomes, strict=True))[len(answer.token_ids) :]:
        answer.token_ids.append(token_id)
        if marked is not None:
            marked.push(token_id, outcome)
    rest = completion.text[len(answer.text) :]
    answer.text += rest
    show(rest if marked is None else marked.show(rest))


def _marked(llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, style: Style) -> MarkedText:
    from draftproof.engine.detokenize import IncrementalDetokenizer

    detokenizer = IncrementalDetokenizer(llm.tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)
    return MarkedText(detokenizer, style)


def legend() -> str:
    """What the marks on stdout mean."""
    return style_for(sys.stdout).legend
