"""Answers are read into reasoning, content and tool calls; whole or in pieces, and never half a marker."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.chat import TOOL_PARSERS, AnswerReader, ToolCall
from draftproof.chat.reader import ReasoningMarkers, message_of, read_answer

THINK = ReasoningMarkers("<think>", "</think>")
PARIS = ToolCall("get_weather", '{"city": "Paris"}')
ROME = ToolCall("get_weather", '{"city": "Rome", "days": 2}')

HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
HERMES_2 = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}</tool_call>'
QWEN = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)

CALLS = [
    ("hermes", HERMES, [PARIS]),
    ("hermes", f"{HERMES}\n{HERMES_2}", [PARIS, ROME]),
    ("qwen3", HERMES, [PARIS]),
    ("qwen3", f"{QWEN}\n{HERMES}", [ROME, PARIS]),
    ("llama3_json", '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    ("llama3_json", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    (
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}',
        [PARIS, ROME],
    ),
    ("llama3_json", '<function=get_weather>{"city": "Paris"}</function>', [PARIS]),
    ("mistral", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}]', [PARIS]),
    ("mistral", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abc123XYZ"}]',
     [ToolCall(PARIS.name, PARIS.arguments, "abc123XYZ")]),
    ("mistral", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
     '[TOOL_CALLS]get_weather[ARGS]{"city": "Rome", "days": 2}', [PARIS, ROME]),
    ("mistral", '[TOOL_CALLS]get_weather[CALL_ID]c1[ARGS]{"city": "Paris"}',
     [ToolCall(PARIS.name, PARIS.arguments, "c1")]),
    ("mistral", '[TOOL_CALLS]get_weather{"city": "Paris"}', [PARIS]),
]  # fmt: skip

MALFORMED = [
    ("hermes", "<tool_call>{'name': 1}</tool_call>", "no JSON"),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no name"),
    ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "no JSON object"),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN"),
    ("hermes", '<tool_call>{"name": "f"', "ended before"),
    ("hermes", "<tool_call>" + "[" * 100_000 + "</tool_call>", "no JSON"),
    ("qwen3", "<tool_call><function=f><parameter=a>1</parameter></tool_call>", "not closed"),
    ("qwen3", "<tool_call><function=f>text</function></tool_call>", "other than parameters"),
    ("llama3_json", '{"name": "f"', "no JSON"),
    ("llama3_json", '<|python_tag|>print("hello")', "no JSON"),
    ("llama3_json", "<function=f>[1]</function>", "no JSON object"),
    ("llama3_json", "<|python_tag|>", "empty"),
    ("mistral", "[TOOL_CALLS][1]", "no name"),
    ("mistral", '[TOOL_CALLS][{"name": "f"}] and more', "nothing else"),
    ("mistral", "[TOOL_CALLS]f", "neither"),
    ("mistral", "[TOOL_CALLS]", "empty"),
]


@pytest.mark.parametrize(("name", "text", "calls"), CALLS)
def test_calls_of_each_family(name, text, calls):
    message = read_answer(f"<think>\nhm\n</think>\n\n{text}", THINK, TOOL_PARSERS[name])
    assert list(message.tool_calls) == calls
    assert message.reasoning_content == "hm" and message.content == "" and message.warnings == ()


@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_content_before_between_and_after_calls_is_kept(name):
    message = read_answer(f"Let me see.\n\n{HERMES}\n\nDone.", None, TOOL_PARSERS[name])
    assert message.tool_calls == (PARIS,) and message.content == "Let me see.Done."


@pytest.mark.parametrize(("name", "text", "reason"), MALFORMED)
def test_what_is_no_call_is_content_with_a_warning(name, text, reason):
    message = read_answer(text, None, TOOL_PARSERS[name])
    assert message.content == text and message.tool_calls == ()
    (warning,) = message.warnings
    assert reason in warning and name in warning


def test_one_malformed_call_loses_no_other():
    message = read_answer(f"a <tool_call>x</tool_call> b {HERMES}", None, TOOL_PARSERS["hermes"])
    assert message.content == "a <tool_call>x</tool_call> b" and message.tool_calls == (PARIS,)
    assert len(message.warnings) == 1


@pytest.mark.parametrize(
    ("text", "is_open", "reasoning", "content"),
    [
        ("<think>\na\n</think>\n\nb", False, "a", "b"),
        ("\n<think>a</think>b", False, "a", "b"),
        ("a\n</think>\n\nb", True, "a", "b"),
        ("a, cut off", True, "a, cut off", ""),
        ("<think>cut off", False, "cut off", ""),
        ("no thought", False, None, "no thought"),
        ("b <think> c", False, None, "b <think> c"),
        ("<thin air", False, None, "<thin air"),
        ("<think></think>b", False, None, "b"),
    ],
)
def test_reasoning_is_split_off(text, is_open, reasoning, content):
    message = read_answer(text, ReasoningMarkers("<think>", "</think>", is_open), None)
    assert (message.reasoning_content, message.content) == (reasoning, content)


def test_without_markers_the_text_is_the_content():
    for text in ("", " a\n", HERMES, "<think>a</think>"):
        assert read_answer(text, None, None).content == text


PIECES = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=f>"]
        + [
            '{"name": "f", "arguments": {}}',
            '{"name": "f", "parameters": {"a": 1}}',
            "x",
            "<",
            "{",
            " ",
            "\n",
            "</",
            "[",
        ]
    ),
    max_size=10,
)


@settings(max_examples=80)
@given(pieces=PIECES, name=st.sampled_from([None, *TOOL_PARSERS]), is_open=st.booleans(), data=st.data())
def test_pieces_give_what_the_whole_text_gives(pieces, name, is_open, data):
    """However the text is cut, and no text that is shown turns out to be part of a marker."""
    text = "".join(pieces)
    dialect = None if name is None else TOOL_PARSERS[name]
    reasoning = data.draw(st.sampled_from([None, ReasoningMarkers("<think>", "</think>", is_open)]))
    reader, deltas, at = AnswerReader(reasoning, dialect), [], 0
    while at < len(text):
        size = data.draw(st.integers(1, 7))
        deltas += reader.push(text[at : at + size])
        at += size
    deltas += reader.finish()
    assert message_of(deltas) == read_answer(text, reasoning, dialect)
    if dialect is None and reasoning is None:
        assert message_of(deltas).content == text


@settings(max_examples=50)
@given(before=st.text("ab <{[\n", max_size=8), data=st.data())
def test_half_a_marker_is_never_shown(before, data):
    name = data.draw(st.sampled_from(["hermes", "mistral"]))
    dialect = TOOL_PARSERS[name]
    body = HERMES if name == "hermes" else '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
    reader, shown = AnswerReader(None, dialect), ""
    for character in before + body:
        shown += "".join(delta.content for delta in reader.push(character))
        assert before.startswith(shown)
    assert message_of(reader.finish()).content == ""


def test_messages_are_ready_for_json_and_for_the_next_turn():
    message = read_answer(f"<think>t</think>{HERMES}<tool_call>", THINK, TOOL_PARSERS["hermes"])
    plain = json.loads(json.dumps(message.to_dict()))
    assert plain["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert plain["role"] == "assistant" and plain["reasoning_content"] == "t" and len(plain["warnings"]) == 1
