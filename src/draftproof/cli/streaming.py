"""One answer as it comes: text on stdout, marked on request, and what is left of it after a Ctrl-C or an error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from draftproof.cli.marks import BRACKETS, COLOUR, MarkedText, Style
from draftproof.cli.output import wants_colour, write
from draftproof.errors import DraftproofError

if TYPE_CHECKING:
    from draftproof.llm import LLM
    from draftproof.outputs import RequestOutput
    from draftproof.params import SamplingParams


@dataclass(slots=True)
class Answer:
    """text: what was shown, without marks. output: None if it was interrupted. error: what ended it early."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    output: RequestOutput | None = None
    error: DraftproofError | None = None

    @property
    def is_interrupted(self) -> bool:
        return self.output is None and self.error is None


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
    except KeyboardInterrupt:
        pass
    except DraftproofError as error:
        if not answer.token_ids:
            raise
        answer.error = error
    show(f"{marked.close()}\n" if marked is not None else "\n")
    return answer


def _marked(llm: LLM, prompt_ids: Sequence[int], params: SamplingParams, style: Style) -> MarkedText:
    from draftproof.engine.detokenize import IncrementalDetokenizer

    detokenizer = IncrementalDetokenizer(llm.tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)
    return MarkedText(detokenizer, style)


def legend() -> str:
    """What the marks on stdout mean."""
    return style_for(sys.stdout).legend
