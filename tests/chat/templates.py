"""Short chat templates with the markers and variables of four families, on a byte-level tokenizer."""

from __future__ import annotations

import copy

from tests.engine.byte_tokenizers import byte_level

_TURNS = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
_LIST = "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"

PLAIN = _TURNS + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
HERMES = _LIST + "Answer with <tool_call>{}</tool_call>.\n" + PLAIN
QWEN3 = (
    _LIST
    + "Answer with <tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>.\n"
    + _TURNS
    + "{% if add_generation_prompt %}<|assistant|>"
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
OPEN_THINKING = _TURNS + "<|assistant|><think>\n"
LLAMA3 = _LIST + '{"name": function name, "parameters": dictionary of argument name and its value}' + PLAIN
LLAMA3_TAG = _LIST + "<|python_tag|>" + PLAIN
MISTRAL = (
    _LIST + "{% for m in messages %}{% if m['tool_calls'] is defined %}[TOOL_CALLS]{% endif %}{% endfor %}" + PLAIN
)
RETRIEVAL = "{% for d in documents %}{{ d['text'] }}{% endfor %}{% generation %}{% endgeneration %}" + PLAIN

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def tokenizer_with(template):
    tokenizer = copy.copy(byte_level())
    tokenizer.chat_template = template
    return tokenizer
