"""A chat's prompt, and how its answer will be read: both follow from the model's own chat template.

The template is transformers' affair; here is checked that it honours what it is given. A template ignores names that
it doesn't use, in silence, so tools, documents and chat_template_kwargs that it doesn't use are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from draftproof.chat.reader import AnswerReader, ReasoningMarkers, read_answer
from draftproof.chat.tools import ToolDialect, dialect_of_template, get_dialect
from draftproof.errors import ParameterError
from draftproof.params import SamplingParams

if TYPE_CHECKING:
    from draftproof.outputs import RequestOutput

Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A chat: mappings with "role" and "content"."""

REASONING_MARKERS: Final = {"think": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}
"""reasoning_parser -> the markers around the reasoning."""
_SET_BY_US: Final = ("messages", "tools", "documents", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class Chat:
    """prompt_ids: the chat, opened for the model's turn. text: the same before tokenization.

    dialect, reasoning: how the answer will be read; None if it has no tool calls or no reasoning.
    """

    prompt_ids: list[int]
    text: str
    dialect: ToolDialect | None
    reasoning: ReasoningMarkers | None

    def describe(self) -> str:
        """Which parsers were chosen, in words."""
        calls = "none" if self.dialect is None else self.dialect.name
        reasoning = "none" if self.reasoning is None else f"{self.reasoning.begin}…{self.reasoning.end}"
        return f"tool calls: {calls}; reasoning: {reasoning}"

    def adjusted(self, params: SamplingParams) -> SamplingParams:
        """The same parameters, with special tokens in the text where the calls' markers are such tokens."""
        return replace(params, skip_special_tokens=False) if self.dialect and self.dialect.keeps_markers else params

    def reader(self) -> AnswerReader:
        """Reads one answer as it comes."""
        return AnswerReader(self.reasoning, self.dialect)

    def read(self, output: RequestOutput) -> RequestOutput:
        """The same output, each completion with its message."""
        read = [
            replace(completion, message=read_answer(completion.text, self.reasoning, self.dialect))
            for completion in output.outputs
        ]
        return replace(output, outputs=tuple(read))


def prepare_chat(
    tokenizer: Any,
    messages: Messages,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    tool_parser: str | None = "auto",
    reasoning_parser: str | None = "auto",
) -> Chat:
    """Writes a chat with the tokenizer's template.

    tools: as OpenAI's API describes functions. documents: for templates of retrieval. chat_template_kwargs: further
    names that the template reads, such as enable_thinking. tool_parser: "auto" goes by the template and is on if
    there are tools, None is off, else a name of TOOL_PARSERS. reasoning_parser: "auto" goes by the template, None is
    off, else a name of REASONING_MARKERS.
    Raises ParameterError, also for what the template would ignore.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise ParameterError(
            "messages", "a chat", "given to a model with a chat template", "use generate with plain text"
        )
    template: str = tokenizer.get_chat_template(None, list(tools) if tools else None)
    extra = dict(chat_template_kwargs or {})
    _check_names(template, tools, documents, extra)
    text: str = tokenizer.apply_chat_template(
        [_plain_message(message) for message in messages],
        tools=list(tools) if tools else None,
        documents=list(documents) if documents else None,
        tokenize=False,
        add_generation_prompt=True,
        **extra,
    )
    prompt_ids = [int(token_id) for token_id in tokenizer(text, add_special_tokens=False)["input_ids"]]
    return Chat(prompt_ids, text, _dialect(tool_parser, template, tools), _reasoning(reasoning_parser, template, text))


def _check_names(template: str, tools: Any, documents: Any, extra: Mapping[str, Any]) -> None:
    known = _names_of(template)
    for name, value in (("tools", tools), ("documents", documents)):
        if value and name not in known:
            raise ParameterError(
                name,
                f"{len(value)} of them",
                "left out with this model: its chat template doesn't use them",
                "describe them in the system message, or take a model that knows them",
            )
    for name, value in extra.items():
        if name in _SET_BY_US:
            raise ParameterError("chat_template_kwargs", {name: value}, "other names", f"{name} is set by itself")
        if name not in known:
            used = ", ".join(sorted(known - set(_SET_BY_US))) or "none"
            raise ParameterError(
                "chat_template_kwargs", {name: value}, f"names that the model's chat template uses: {used}"
            )


def _names_of(template: str) -> set[str]:
    """The names that a template reads from outside."""
    import jinja2
    import jinja2.meta

    # transformers' own block, which marks the assistant's tokens; plain jinja doesn't know it.
    plain = re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)
    environment = jinja2.Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        return jinja2.meta.find_undeclared_variables(environment.parse(plain))
    except jinja2.TemplateError as error:
        raise ParameterError("chat_template", template[:60], "a Jinja template", str(error)) from error


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with text content; parts of text are joined by line ends, as vLLM does it."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ParameterError("messages", message, 'mappings with a "role" and "content"')
    content = message.get("content")
    if content is None or isinstance(content, str):
        return dict(message)
    if not isinstance(content, Sequence) or not all(isinstance(part, Mapping) for part in content):
        raise ParameterError("messages", content, "text, or a list of parts of text")
    for part in content:
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ParameterError(
                "messages", part, "parts of type text alone", "targets read token ids: describe the media in text"
            )
    return {**message, "content": "\n".join(part["text"] for part in content)}


def _dialect(parser: str | None, template: str, tools: Any) -> ToolDialect | None:
    if parser is None or (parser == "auto" and not tools):
        return None
    if parser != "auto":
        return get_dialect(parser)
    found = dialect_of_template(template)
    if found is None:
        raise ParameterError(
            "tool_parser",
            parser,
            "given by name for this model: its chat template writes calls in no dialect that is known here",
            "pass tool_parser=None to get calls as text",
        )
    return found


def _reasoning(parser: str | None, template: str, prompt: str) -> ReasoningMarkers | None:
    if parser is None:
        return None
    if parser == "auto":
        names = [name for name, (begin, end) in REASONING_MARKERS.items() if begin in template or end in template]
        if not names:
            return None
        parser = names[0]
    if parser not in REASONING_MARKERS:
        raise ParameterError("reasoning_parser", parser, f'"auto", None or one of {", ".join(REASONING_MARKERS)}')
    begin, end = REASONING_MARKERS[parser]
    return ReasoningMarkers(begin, end, is_open=prompt.rstrip().endswith(begin))
