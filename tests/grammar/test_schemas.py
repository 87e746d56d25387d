"""Every text that a grammar gives is a document of its schema: random schemas, random walks, both libraries.

The schemas come from a family that uses each keyword that xgrammar honours; whatever it doesn't is refused by name.
"""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof import GrammarError, ParameterError
from draftproof.grammar import Grammars, Phase
from draftproof.grammar.json_schema import check, closed
from draftproof.sampling import resolve
from tests.grammar.bytes_vocabulary import EOS, ByteTokenizer, asking

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, [EOS])
FORMATS = jsonschema.FormatChecker()


def cursor_of(structured, **kw):
    params = asking(structured, **kw)
    return GRAMMARS.cursor(params, resolve(params, TOKENIZER, TOKENIZER.vocab_size, [EOS]))


def walk(structured, seed, most=160):
    """A random text of the grammar: uniform over what is allowed, ending and closing where it may; None if longer."""
    source, cursor, ids = random.Random(seed), cursor_of(structured), []
    closing = [EOS, *(TOKENIZER.id(text) for text in (b'"', b"}", b"]"))]
    spaces = [TOKENIZER.id(text) for text in (b" ", b"\n", b"\t", b"\r", b"\n\n")]
    while cursor.phase is not Phase.ENDED:
        allowed = np.flatnonzero(cursor.mask).tolist()
        ready = [token_id for token_id in closing if token_id in allowed and source.random() < 0.4]
        solid = [token_id for token_id in allowed if token_id not in spaces] or allowed
        token_id = ready[0] if ready else source.choice(solid if source.random() < 0.9 else allowed)
        ids.append(token_id)
        cursor = cursor.after(token_id)
        if len(ids) > most:
            return None
    return TOKENIZER.decode(ids)


names = st.sampled_from(["a", "name", 'k"', "é", "x y"])
strings = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={"maxLength": st.integers(1, 4), "description": st.just("words")},
) | st.sampled_from(
    [
        {"type": "string", "pattern": "^[a-c]{1,3}$"},
        {"type": "string", "pattern": "^(x|[^a]){1,4}$"},
        {"type": "string", "minLength": 1, "maxLength": 2},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "ipv4"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "enum": ["é\n", '"', "plain"]},
    ]
)
numbers = st.sampled_from(
    [
        {"type": "integer", "minimum": -3, "maximum": 12},
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 5},
        {"type": "number", "minimum": 0, "maximum": 2},
        {"type": "integer", "multipleOf": 3, "title": "thirds"},
        {"type": ["integer", "null"], "minimum": 2, "maximum": 9},
        {"type": "boolean"},
        {"const": "one"},
        {"enum": [1, None, "x", True]},
    ]
)
leaves = strings | numbers


def objects(values):
    def build(drawn):
        properties, num_required, more = drawn
        schema = {"type": "object", "properties": properties, "required": list(properties)[:num_required]}
        return {**schema, **more}

    more = st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "boolean"}},
                            {"maxProperties": 5}, {"unevaluatedProperties": False}])  # fmt: skip
    return st.tuples(st.dictionaries(names, values, max_size=3), st.integers(0, 3), more).map(build)


def arrays(values):
    return st.one_of(
        values.map(lambda item: {"type": "array", "items": item, "maxItems": 3}),
        values.map(lambda item: {"type": "array", "items": item, "minItems": 1, "maxItems": 2}),
        st.lists(values, min_size=1, max_size=2).map(
            lambda items: {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        ),
    )


def combined(values):
    return st.lists(values, min_size=1, max_size=2).map(lambda options: {"anyOf": options}) | values.map(
        lambda part: {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2, "$defs": {"part": part}}
    )


schemas = objects(st.recursive(leaves, lambda inner: objects(inner) | arrays(inner) | combined(inner), max_leaves=4))


def rooted(schema):
    """$defs where $ref looks for them: in the document's root."""
    found = {}

    def lift(part):
        if isinstance(part, list):
            return [lift(item) for item in part]
        if not isinstance(part, dict):
            return part
        part = {key: lift(value) for key, value in part.items()}
        if "$defs" in part and "items" in part:
            name = f"part{len(found)}"
            found[name] = part.pop("$defs")["part"]
            part["items"] = {"$ref": f"#/$defs/{name}"}
        return part

    made = lift(schema)
    return {**made, "$defs": found} if found else made


@settings(max_examples=60)
@given(schemas, st.integers(0, 10**6), st.sampled_from(["xgrammar", "llguidance"]), st.booleans())
def test_what_the_grammar_gives_the_schema_allows(schema, seed, backend, one_line):
    schema = rooted(schema)
    try:
        text = walk({"json": schema, "backend": backend, "disable_any_whitespace": one_line}, seed)
    except GrammarError as error:
        # What llguidance lacks it says; xgrammar is given nothing here that it lacks.
        assert backend == "llguidance", error
        return
    if text is not None:
        jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(json.loads(text))


REGEXES = ["(a|bc)*d", "[0-9]{2,3}", "é?x{0,2}y", "(ab|a)(c|bcd)", "[^a-z\\n]{1,3}!", "a.c", "(|n)ame", "\\d+(\\.\\d)?"]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(REGEXES), min_size=1, max_size=3), st.sampled_from("|+"), st.integers(0, 10**6),
       st.sampled_from(["xgrammar", "llguidance"]))  # fmt: skip
def test_what_a_regex_gives_it_matches(parts, how, seed, backend):
    regex = "|".join(f"({part})" for part in parts) if how == "|" else "".join(parts)
    text = walk({"regex": regex, "backend": backend}, seed)
    if text is not None:
        assert re.fullmatch(regex, text), (regex, text)


REFUSED = {
    "uniqueItems": ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": {"const": 1}}, "contains"),
    "not": ({"not": {"type": "string"}}, "not"),
    "if": ({"type": "string", "if": {"minLength": 3}, "then": {"maxLength": 4}}, "if"),
    "allOf of two": ({"allOf": [{"minimum": 3, "type": "integer"}, {"type": "integer", "maximum": 6}]}, "allOf"),
    "beside anyOf": ({"type": "integer", "minimum": 5, "anyOf": [{"type": "integer"}]}, "beside anyOf"),
    "beside $ref": ({"$defs": {"x": {"type": "integer"}}, "$ref": "#/$defs/x", "minimum": 5}, "beside \\$ref"),
    "oneOf that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 5}]}, "oneOf"),
    "oneOf of a string and its value": ({"oneOf": [{"type": "string"}, {"const": "a"}]}, "oneOf"),
    "no type": ({"minLength": 3}, 'say "type": "string"'),
    "wrong type": ({"type": "string", "minimum": 3}, 'say "type": "number"'),
    "undeclared": ({"type": "object", "properties": {}, "required": ["a"]}, "declare it"),
    "pattern in the middle": ({"type": "string", "pattern": "b"}, "from \\^ to \\$"),
    "pattern with a quote": ({"type": "string", "pattern": '^"+$'}, "quote"),
    "pattern with a written quote": ({"type": "string", "pattern": "^\\x22$"}, "quote"),
    "format": ({"type": "string", "format": "idn-email"}, "the formats are"),
    "length beside a pattern": ({"type": "string", "pattern": "^b*$", "maxLength": 2}, "beside pattern"),
    "length beside a format": ({"type": "string", "format": "date", "maxLength": 2}, "beside format"),
    "pattern beside a format": ({"type": "string", "pattern": "^b*$", "format": "date"}, "beside pattern"),
    "pattern of an optional group": ({"type": "string", "pattern": r"^1(\.[0-9]+)?3$"}, "a length that varies"),
    "property names of an optional group": (
        {"type": "object", "patternProperties": {r"^1(\.[0-9]+)?3$": True}, "additionalProperties": False},
        "a length that varies",
    ),
    "anchor": ({"$defs": {"x": {"$anchor": "x", "type": "integer"}}, "$ref": "#x"}, "anchor|\\$ref"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "pattern over a property": (
        {"type": "object", "properties": {"ab": {"type": "string"}}, "patternProperties": {"^a": {"type": "integer"}}},
        "declared as well",
    ),
    "two patterns": (
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}},
        "one pattern",
    ),
    "unknown keyword": ({"type": "object", "propertes": {}}, "no keyword"),
    "deep": ({"type": "array", "items": {"type": "object", "properties": {"a": {"not": {}}}}}, "#/items/properties/a"),
    "no schema": ([], "a JSON schema|mapping"),
    "enum of another type": ({"type": "string", "enum": ["a", 1]}, "beside enum"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_xgrammar_would_leave_out_is_refused_by_name(name):
    schema, message = REFUSED[name]
    with pytest.raises((GrammarError, ParameterError), match=message):
        cursor_of({"json": schema})


def test_what_is_refused_needs_to_be():
    """Without the check, xgrammar gives texts that the schema forbids: the reason for each refusal."""
    import xgrammar

    info = xgrammar.TokenizerInfo([b"<eos>", b"a"], xgrammar.VocabType.RAW, vocab_size=2, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    unsound = {
        "uniqueItems": "[1, 1]",
        "not": '"a"',
        "if": '"abcde"',
        "allOf of two": "7",
        "beside anyOf": "1",
        "beside $ref": "1",
        "oneOf that overlaps": "5",
        "no type": '"a"',
        "undeclared": "{}",
        "pattern with a quote": '"""',
        "format": '"a"',
        "length beside a pattern": '"bbb"',
        "length beside a format": '"2024-01-31"',
        "pattern beside a format": '"2024-01-31"',
        "pattern of an optional group": '"123"',
        "property names of an optional group": '{"123": 1}',
    }
    for name, text in unsound.items():
        schema = REFUSED[name][0]
        compiled = compiler.compile_json_schema(json.dumps(schema), any_whitespace=False)
        matcher = xgrammar.GrammarMatcher(compiled)
        assert matcher.accept_string(text) and matcher.is_completed(), name
        try:
            assert not jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(json.loads(text)), name
        except json.JSONDecodeError:
            assert name == "pattern with a quote"


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]},
        {"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "x"}, "n": {"type": "integer"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"const": "y"}}, "required": ["kind"]},
        ]},
        {"allOf": [{"type": "string"}]},
        {"type": "string", "enum": ["a", "b"], "title": "a title", "x-note": 1},
        {"type": "array", "uniqueItems": False, "items": True},
        {"type": "object", "properties": {"b": {"type": "integer"}}, "patternProperties": {"^a$": {"type": "integer"}}},
    ],
)  # fmt: skip
def test_what_is_honoured_is_taken(schema):
    check(schema)
    text = next(text for seed in range(30) if (text := walk({"json": schema}, seed)) is not None)
    jsonschema.validate(json.loads(text), schema)


def test_undeclared_properties_are_left_out_by_both_libraries():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for backend in ("xgrammar", "llguidance"):
        cursor = cursor_of({"json": schema, "backend": backend, "disable_any_whitespace": True})
        after = cursor.after_all(TOKENIZER.ids('{"'))
        assert after.allows(TOKENIZER.id(b"a")) and not after.allows(TOKENIZER.id(b"b"))
    assert closed({"allOf": [{"properties": {"a": True}}]}) == {"allOf": [{"properties": {"a": True}}]}
    assert closed(schema)["additionalProperties"] is False


def test_strings_of_a_length_have_no_raw_control_characters():
    """xgrammar's allow them, and the text would be no JSON."""
    cursor = cursor_of({"json": {"type": "string", "maxLength": 3}}).after_all(TOKENIZER.ids('"'))
    assert not any(cursor.allows(TOKENIZER.id(bytes([byte]))) for byte in range(32))
    assert cursor.allows(TOKENIZER.id(b"a"))
