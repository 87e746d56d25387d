"""Speculation on = off under `keyed` with every kind of grammar, chains and trees, both libraries; and every output
is a text of its grammar."""

import json
import re
from functools import partial

import jsonschema
import pytest

from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.grammar.bytes_vocabulary import ByteTokenizer, QuickTable, asking, engine, ids

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 2},
        "age": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["x", "yy"]}, "maxItems": 1},
    },
    "required": ["name", "age", "tags"],
}
GBNF = 'root ::= "<" item ">"\nitem ::= [ab] item | "é"'
LARK = 'start: "<" item ">"\nitem: /[ab]/ item | "é"'
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [
            {"type": "tag", "begin": "<call>", "content": {"type": "json_schema", "json_schema": {"enum": [1, 12]}},
             "end": "</call>"},
        ],
    },
}  # fmt: skip


def full_match(pattern, text):
    assert re.fullmatch(pattern, text), text


def valid(text):
    jsonschema.validate(json.loads(text), SCHEMA)


def an_object(text):
    assert isinstance(json.loads(text), dict)


def a_choice(text):
    assert text in CHOICES


def after_the_marker(text):
    full_match("[0-9]{2}", text.split("}", 1)[1] if "}" in text else "00")


CHOICES = ["name", "nab", 'é"\\\n']
REGEX = "(ab|[0-9]){2,6}x?"
KINDS = {
    "json": ({"json": SCHEMA}, valid),
    "json in one line": ({"json": SCHEMA, "disable_any_whitespace": True}, valid),
    "json_object": ({"json_object": True}, an_object),
    "regex": ({"regex": REGEX}, partial(full_match, REGEX)),
    "choice": ({"choice": CHOICES}, a_choice),
    "gbnf": ({"grammar": GBNF}, partial(full_match, "<[ab]*é>")),
    "lark": ({"grammar": LARK}, partial(full_match, "<[ab]*é>")),
    "structural_tag": ({"structural_tag": TAG}, partial(full_match, "<call>(1|12)</call>")),
    "marker": ({"regex": "[0-9]{2}", "start_after": "}"}, after_the_marker),
}  # fmt: skip
CASES = [
    (kind, backend)
    for kind in KINDS
    for backend in ("xgrammar", "llguidance")
    if (kind, backend) != ("structural_tag", "llguidance")
]
TOKENIZER = ByteTokenizer()
PROMPTS = [TOKENIZER.ids("abab"), TOKENIZER.ids('{"name')]


DRAFTERS = {
    "ngram": {"method": "ngram"},
    "forced": {"method": "forced"},
    "chain": {"drafter": TableDrafter(QuickTable(TOKENIZER, 1))},
    "tree": {"drafter": TreeDrafter(QuickTable(TOKENIZER, 0))},
}


def request_params(kind, backend, **kw):
    given = {**KINDS[kind][0], "backend": backend}
    return [asking(given, **{"seed": seed, "max_tokens": 36, **kw}) for seed in range(len(PROMPTS))]


@pytest.mark.parametrize(("kind", "backend"), CASES)
def test_on_is_off_and_the_text_is_the_grammars(kind, backend):
    params = request_params(kind, backend)
    plain = engine(TOKENIZER).generate(PROMPTS, params)
    for name, how in DRAFTERS.items():
        assert ids(engine(TOKENIZER, **how).generate(PROMPTS, params)) == ids(plain), name


@pytest.mark.parametrize(("kind", "backend"), CASES)
def test_every_finished_text_is_the_grammars(kind, backend):
    params = [asking({**KINDS[kind][0], "backend": backend}, seed=seed, max_tokens=80) for seed in range(10)]
    outputs = engine(TOKENIZER, num_slots=10, boost=5.0).generate([PROMPTS[0]] * 10, params)
    finished = [output.text for output in outputs if output.outputs[0].finish_reason == "stop"]
    assert len(finished) >= 5
    for text in finished:
        KINDS[kind][1](text)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "repetition_penalty": 1.2}, {"top_k": 3, "min_p": 0.05}])
def test_on_is_off_beside_other_samplers(temperature, filters):
    params = request_params("json in one line", "xgrammar", temperature=temperature, **filters)
    plain, speculated = (engine(TOKENIZER, **how).generate(PROMPTS, params) for how in ({}, DRAFTERS["chain"]))
    assert ids(plain) == ids(speculated)
