"""Speculation on = off under `keyed` with every kind of grammar, chains and trees, both libraries; and every output
is a text of its grammar."""

import json
import re
from functools import partial

import jsonschema
import pytest

from draftproof import LLM
from draftproof.targets.toy import TableTarget
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.grammar.bytes_vocabulary import EOS, ByteTokenizer, QuickTable, asking, engine, ids

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
    return [asking(given, **{"seed": seed, "max_tokens": 24, **kw}) for seed in range(len(PROMPTS))]


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


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 0.0},
        {"temperature": 0.0, "repetition_penalty": 1.3},
        {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2},
        {"temperature": 0.7, "top_k": 3, "min_p": 0.05, "presence_penalty": 0.5},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05, "dry_multiplier": 0.8},
        {"mirostat": 2, "mirostat_tau": 3.0},
    ],
    ids=lambda filters: ", ".join(filters),
)
def test_on_is_off_beside_other_samplers(filters):
    params = request_params("json in one line", "xgrammar", **filters)
    plain = engine(TOKENIZER).generate(PROMPTS, params)
    assert ids(engine(TOKENIZER, **DRAFTERS["chain"]).generate(PROMPTS, params)) == ids(plain)


def test_on_is_off_in_requests_that_are_preempted():
    """A cache too small for all: requests lose their slots and begin again, with the cursors that they have."""
    params = [asking({"json": SCHEMA, "disable_any_whitespace": True}, seed=seed, max_tokens=40) for seed in range(4)]
    plain = engine(TOKENIZER).generate(PROMPTS * 2, params)
    law = QuickTable(TOKENIZER, 0)
    target = TableTarget(law, num_slots=4, eos_token_ids=[EOS], max_model_len=64, max_num_cached_tokens=96)
    config = {"method": "ngram", "prompt_lookup_min": 1, "draft_length": "fixed", "num_speculative_tokens": 4}
    llm = LLM.from_target(target, TOKENIZER, speculative_config=config)
    assert ids(llm.generate(PROMPTS * 2, params)) == ids(plain)
    assert llm.engine.scheduler.num_preemptions > 0
