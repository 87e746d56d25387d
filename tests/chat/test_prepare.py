"""Chats are written with the model's template; what the template would ignore is refused."""

import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.chat import TOOL_PARSERS, prepare_chat
from draftproof.chat.tools import dialect_of_template
from tests.chat import templates

ASK = [{"role": "user", "content": "Weather in Paris?"}]


def prepared(template, **options):
    return prepare_chat(templates.tokenizer_with(template), ASK, **options)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (templates.HERMES, "hermes"),
        (templates.QWEN3, "qwen3"),
        (templates.LLAMA3, "llama3_json"),
        (templates.LLAMA3_TAG, "llama3_json"),
        (templates.MISTRAL, "mistral"),
    ],
)
def test_the_template_decides_the_dialect(template, name):
    assert dialect_of_template(template) is TOOL_PARSERS[name]
    chat = prepared(template, tools=[templates.WEATHER])
    assert chat.dialect.name == name and f"tool calls: {name}" in chat.describe()
    assert "get_weather" in chat.text and chat.text.endswith("<|assistant|>")
    assert prepared(template).dialect is None, "without tools an answer is text"
    assert prepared(template, tools=[templates.WEATHER], tool_parser=None).dialect is None
    given = prepared(template, tools=[templates.WEATHER], tool_parser="mistral")
    assert given.dialect.name == "mistral"


def test_special_tokens_stay_in_the_text_where_the_markers_are_such():
    params = SamplingParams()
    assert prepared(templates.MISTRAL, tools=[templates.WEATHER]).adjusted(params).skip_special_tokens is False
    assert prepared(templates.HERMES, tools=[templates.WEATHER]).adjusted(params) is params


def test_the_prompt_is_tokenized_as_the_template_wrote_it():
    chat = prepared(templates.PLAIN)
    assert templates.tokenizer_with(templates.PLAIN).decode(chat.prompt_ids) == chat.text
    assert chat.text == "<|user|>Weather in Paris?\n<|assistant|>"


def test_thinking_is_opened_and_closed_by_the_prompt():
    assert prepared(templates.QWEN3).reasoning.is_open is False
    closed = prepared(templates.QWEN3, chat_template_kwargs={"enable_thinking": False})
    assert closed.text.endswith("<think>\n\n</think>\n\n") and closed.reasoning.is_open is False
    opened = prepared(templates.OPEN_THINKING)
    assert opened.reasoning.is_open and opened.describe() == "tool calls: none; reasoning: <think>…</think>"
    assert prepared(templates.OPEN_THINKING, reasoning_parser=None).reasoning is None
    assert prepared(templates.PLAIN).reasoning is None


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (templates.PLAIN, {"tools": [templates.WEATHER]}, "tools=.*doesn't use them"),
        (templates.HERMES, {"documents": [{"text": "a"}]}, "documents=.*doesn't use them"),
        (templates.HERMES, {"chat_template_kwargs": {"enable_thinking": False}}, "enable_thinking.*names that"),
        (templates.HERMES, {"chat_template_kwargs": {"messages": []}}, "set by itself"),
        (templates.HERMES, {"tool_parser": "hermess"}, "tool_parser='hermess': .*hermes"),
        (templates.HERMES, {"reasoning_parser": "x"}, "reasoning_parser='x'"),
        (templates._LIST + templates.PLAIN, {"tools": [templates.WEATHER]}, "no dialect that is known"),
        ("{% if %}", {}, "a Jinja template"),
        ("", {}, "a model with a chat template"),
    ],
)
def test_what_the_template_would_ignore_is_refused(template, options, message):
    with pytest.raises(ParameterError, match=message):
        prepared(template, **options)


def test_documents_reach_a_template_that_uses_them():
    assert prepared(templates.RETRIEVAL, documents=[{"text": "Paris is wet."}]).text.startswith("Paris is wet.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], "describe the media in text"),
        ([{"type": "input_audio"}], "describe the media in text"),
        (5, "text, or a list"),
    ],
)
def test_media_in_messages_are_refused(content, message):
    with pytest.raises(ParameterError, match=message):
        prepare_chat(templates.tokenizer_with(templates.PLAIN), [{"role": "user", "content": content}])


def test_parts_of_text_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = prepare_chat(templates.tokenizer_with(templates.PLAIN), [{"role": "user", "content": parts}])
    assert chat.text.startswith("<|user|>a\nb\n")


def scripted(answer, template):
    """An LLM whose answer to any chat is `answer`, byte by byte."""
    from draftproof import LLM
    from draftproof.targets.toy import TableTarget
    from draftproof.verify.tables import LawTable

    tokenizer = templates.tokenizer_with(template)
    script = [*tokenizer(answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    begin = len(prepare_chat(tokenizer, ASK, tools=[templates.WEATHER]).prompt_ids)

    def weights(context):
        return [
            int(token_id == script[min(len(context) - begin, len(script) - 1)]) for token_id in range(len(tokenizer))
        ]

    target = TableTarget(LawTable(len(tokenizer), weights), eos_token_ids=[tokenizer.eos_token_id])
    config = {"num_speculative_tokens": 4, "draft_length": "fixed"}
    return LLM.from_target(target, tokenizer, speculative_config=config)


@pytest.mark.parametrize(
    ("template", "answer"),
    [
        (templates.HERMES, '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'),
        (templates.LLAMA3, '{"name": "get_weather", "parameters": {"city": "Paris"}}'),
        (templates.MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'),
    ],
)
def test_an_answer_of_the_engine_becomes_a_message(template, answer):
    llm = scripted(answer, template)
    (output,) = llm.chat(ASK, SamplingParams(temperature=0, max_tokens=200), tools=[templates.WEATHER])
    message = output.outputs[0].message
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", '{"city": "Paris"}')]
    assert message.content == "" and output.to_dict()["message"]["tool_calls"]
    reader, deltas = llm.prepare_chat(ASK, tools=[templates.WEATHER]).reader(), []
    for chunk in llm.stream_generate(output.prompt_token_ids, SamplingParams(temperature=0, max_tokens=200)):
        deltas += reader.push(chunk.text)
    deltas += reader.finish()
    assert [delta.tool_call for delta in deltas] == list(message.tool_calls)
