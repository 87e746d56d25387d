"""What is refused, when, and for whom; what is compiled once; whose tokens mean what."""

import sys

import pytest

from draftproof import GenerationFailed, GrammarError, MissingExtraError, ParameterError, SamplingParams
from draftproof.grammar import Grammars
from draftproof.sampling import resolve
from draftproof.structured import StructuredOutputsParams
from tests.grammar.bytes_vocabulary import EOS, ByteTokenizer, SmallTokenizer, asking, engine

TOKENIZER = ByteTokenizer()
VOCAB = TOKENIZER.vocab_size
PROMPT = TOKENIZER.ids("p")
BACKENDS = ["xgrammar", "llguidance"]


def grammars(tokenizer=TOKENIZER, eos_ids=(EOS,), **kw):
    return Grammars(tokenizer, tokenizer.vocab_size if tokenizer else VOCAB, eos_ids, **kw)


def cursor_of(structured, made=None, **kw):
    params = asking(structured, **kw)
    return (grammars() if made is None else made).cursor(params, resolve(params, TOKENIZER, VOCAB, [EOS]))


BAD_FIELDS = {
    "two kinds": ({"regex": "a", "choice": ["b"]}, "exactly one"),
    "no kind": ({"backend": "xgrammar"}, "exactly one"),
    "json_object False alone": ({"json_object": False}, "exactly one"),
    "unknown": ({"regx": "a"}, "did you mean 'regex'"),
    "no library": ({"regex": "a", "backend": "outlines"}, "one of xgrammar, llguidance"),
    "empty choice": ({"choice": []}, "at least one text"),
    "no text": ({"regex": 3}, "a text"),
    "no JSON": ({"json": "{"}, "not JSON"),
    "list": ({"json": [1]}, "a mapping"),
    "not writable": ({"json": {"a": {1, 2}}}, "can't be written"),
    "spaces of a regex": ({"regex": "a", "disable_any_whitespace": True}, "json or json_object"),
    "pattern of spaces with xgrammar": ({"json_object": True, "whitespace_pattern": " ?"}, "llguidance"),
    "two rules of spaces": (
        {"json_object": True, "whitespace_pattern": " ?", "disable_any_whitespace": True, "backend": "llguidance"},
        "unset with disable_any_whitespace",
    ),
    "tags of llguidance": ({"structural_tag": {}, "backend": "llguidance"}, "xgrammar with structural_tag"),
    "empty marker": ({"regex": "a", "start_after": ""}, "at least one"),
    "marker of a negative id": ({"regex": "a", "start_after": [-1]}, "0 or more"),
    "additional properties": ({"json_object": True, "disable_additional_properties": False}, "left out already"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_fields_that_contradict_each_other_are_refused_when_they_are_given(name):
    given, message = BAD_FIELDS[name]
    with pytest.raises(ParameterError, match=message):
        SamplingParams(structured_outputs=given)


def test_fields_in_their_other_forms():
    class Model:
        @staticmethod
        def model_json_schema():
            return {"type": "integer"}

    made = [StructuredOutputsParams(json=given) for given in ({"type": "integer"}, '{ "type":"integer" }', Model)]
    assert made[0] == made[1] == made[2] and len({hash(one) for one in made}) == 1
    read = SamplingParams.from_dict({"structured_outputs": {"regex": "a", "json": None, "disable_fallback": True}})
    assert read.structured_outputs == StructuredOutputsParams(regex="a")
    assert SamplingParams(structured_outputs=None).structured_outputs is None
    with pytest.raises(ParameterError, match="ignore_eos"):
        SamplingParams(structured_outputs={"regex": "a"}, ignore_eos=True)
    with pytest.raises(ParameterError, match="structured_outputs"):
        SamplingParams(structured_outputs="a")
    with pytest.raises(ParameterError, match="its name here is structured_outputs"):
        SamplingParams(guided_regex="a")


BAD_GRAMMARS = {
    "regex": ({"regex": "["}, "xgrammar can't compile.*position 2"),
    "regex that it lacks": ({"regex": "(?=a)b"}, "Lookahead"),
    "regex of llguidance": ({"regex": "[", "backend": "llguidance"}, "llguidance can't compile"),
    "regex that llguidance lacks": ({"regex": "(?=a)b", "backend": "llguidance"}, "llguidance can't compile"),
    "schema": ({"json": {"type": "objekt"}}, "objekt"),
    "schema of llguidance": ({"json": {"type": "objekt"}, "backend": "llguidance"}, "llguidance can't compile"),
    "schema that llguidance lacks": (
        {"json": {"type": "array", "uniqueItems": True}, "backend": "llguidance"},
        "uniqueItems",
    ),
    "schema without a text": ({"json": False}, "cannot accept any value"),
    "empty range": ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "minimum greater"),
    "grammar": ({"grammar": "root ::= missing"}, "missing"),
    "lark": ({"grammar": "start: missing", "backend": "llguidance"}, "missing"),
    "grammar without an end": ({"grammar": "root ::= root"}, "no token of the vocabulary can begin"),
    "tag": ({"structural_tag": {"type": "structural_tag"}}, "xgrammar can't compile"),
    "schema in a tag": (
        {
            "structural_tag": {
                "type": "structural_tag",
                "format": {"type": "json_schema", "json_schema": {"not": {"type": "string"}}},
            }
        },
        "not is not enforced",
    ),
    "marker outside": ({"regex": "a", "start_after": [VOCAB]}, "ids run from 0"),
}


@pytest.mark.parametrize("name", BAD_GRAMMARS)
def test_grammars_that_cannot_be_compiled_fail_their_request_alone(name):
    given, message = BAD_GRAMMARS[name]
    requests = [
        asking({"regex": "[ab]{3}"}, seed=1),
        asking(given, seed=2),
        asking(None, seed=3, max_tokens=5, ignore_eos=True),
    ]
    llm = engine(TOKENIZER, method="ngram")
    with pytest.raises(GenerationFailed, match=message) as caught:
        llm.generate([PROMPT] * 3, requests)
    first, second, third = caught.value.outputs
    assert first.error is None and third.error is None and second.error is not None
    assert len(first.text) == 3 and len(third.outputs[0].token_ids) == 5
    assert second.error.request_id == second.request_id and second.outputs[0].token_ids == ()
    with pytest.raises(GrammarError, match=message):
        llm.generate([PROMPT], requests[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_characters_that_no_token_spells(backend):
    small = SmallTokenizer([b"a", b"b"])
    params = asking({"regex": "[xy]+", "backend": backend})
    with pytest.raises(GrammarError, match="no token of the vocabulary can begin|can't compile"):
        Grammars(small, small.vocab_size, [EOS]).cursor(params, resolve(params, small, small.vocab_size, [EOS]))


def test_a_dead_end_further_on_fails_its_request_alone_and_says_why():
    small = SmallTokenizer([b"a", b"b"])
    llm = engine(small, method="ngram")
    requests = [asking({"regex": "a{3}"}, seed=1), asking({"regex": "abx"}, seed=1)]
    with pytest.raises(GenerationFailed, match="the grammar allows no token here") as caught:
        llm.generate([[1], [1]], requests)
    assert caught.value.outputs[0].text == "aaa" and caught.value.outputs[1].text == "ab"
    assert caught.value.outputs[1].error.position == 3


def test_without_a_tokenizer_or_an_end():
    params = asking({"regex": "a"}, detokenize=False)
    row = resolve(params, None, VOCAB, [EOS])
    with pytest.raises(GrammarError, match="needs the model's tokenizer"):
        grammars(None).cursor(params, row)
    with pytest.raises(GrammarError, match="no EOS token"):
        grammars(eos_ids=()).cursor(params, row)
    with pytest.raises(GrammarError, match="can't read what the tokens of a object write"):
        Grammars(object(), VOCAB, [EOS]).cursor(params, row)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_library_that_is_not_installed(backend, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == backend or name.endswith(f"{backend}_backend")]:
        monkeypatch.delitem(sys.modules, name)
    import draftproof.grammar

    monkeypatch.delattr(draftproof.grammar, f"{backend}_backend", raising=False)
    monkeypatch.setitem(sys.modules, backend, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'draftproof\[structured\]'"):
        cursor_of({"regex": "a", "backend": backend})


CONTRADICTIONS = {
    "allowed ids": ({"allowed_token_ids": TOKENIZER.ids("z")}, "allowed_token_ids"),
    "bias": ({"logit_bias": {token_id: float("-inf") for token_id in TOKENIZER.ids("ab")}}, "logit_bias"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_parameters_that_leave_the_first_row_no_token(name):
    given, message = CONTRADICTIONS[name]
    with pytest.raises(GrammarError, match=message):
        cursor_of({"regex": "[ab]"}, **given)


def test_min_tokens_that_no_choice_can_fill():
    made = grammars()
    assert cursor_of({"choice": ["abab", "x"]}, made, min_tokens=4) is not None
    with pytest.raises(ParameterError, match="at most 4, the tokens of the longest choice"):
        cursor_of({"choice": ["abab", "x"]}, made, min_tokens=5)
    with pytest.raises(GrammarError, match="min_tokens"):
        cursor_of({"regex": ""}, made, min_tokens=1)


def test_min_tokens_within_a_grammar_holds_with_drafts_and_without():
    """The end is masked until min_tokens; a grammar that must end earlier fails at that row, and says so."""
    given = asking({"regex": "[xy]{2,6}"}, min_tokens=5, seed=1)
    outputs = [engine(TOKENIZER, **how).generate([PROMPT], given) for how in ({}, {"method": "ngram"})]
    for output in outputs[0] + outputs[1]:
        assert 5 <= len(output.outputs[0].token_ids)
    given = asking({"regex": "[xy]{2}"}, min_tokens=5, seed=1)
    for how in ({}, {"method": "ngram"}, {"method": "forced"}):
        with pytest.raises(GenerationFailed, match="none of them: look at min_tokens") as caught:
            engine(TOKENIZER, **how).generate([PROMPT], given)
        assert len(caught.value.outputs[0].text) == 2


def test_grammars_are_compiled_once_and_the_oldest_go():
    made = grammars(max_grammars=2)
    for regex in ("a", "b", "a", "a"):
        cursor_of({"regex": regex}, made)
    assert made.num_compiled == 2 and len(made) == 2
    cursor_of({"regex": "c"}, made)
    assert len(made) == 2
    cursor_of({"regex": "a"}, made)
    assert made.num_compiled == 3
    cursor_of({"regex": "b"}, made)
    assert made.num_compiled == 4
    cursor_of({"regex": "b", "start_after": "x"}, made)
    assert made.num_compiled == 4
