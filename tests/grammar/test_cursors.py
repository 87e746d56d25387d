"""Cursors: what ends a text, what is never text, samples, dead ends, and that a cursor is its tokens."""

import pytest

from draftproof import GrammarError
from draftproof.core import Draft
from draftproof.grammar import Grammars, Phase
from draftproof.sampling import resolve
from draftproof.verify.tables import LawTable
from tests.grammar.bytes_vocabulary import EOS, SPECIAL, ByteTokenizer, SmallTokenizer, asking, engine, ids, texts

TOKENIZER = ByteTokenizer()
VOCAB = TOKENIZER.vocab_size
PROMPT = TOKENIZER.ids("p")
BACKENDS = ["xgrammar", "llguidance"]


def grammars(eos_ids=(EOS,)):
    return Grammars(TOKENIZER, VOCAB, eos_ids)


def cursor_of(structured, made=None, **kw):
    params = asking(structured, **kw)
    return (grammars() if made is None else made).cursor(params, resolve(params, TOKENIZER, VOCAB, [EOS]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_special_tokens_and_padding_are_never_text(backend):
    """In a JSON string `<think>` is spelled out: the special token of that text would vanish from the decoded one."""
    points = {
        '"': {"json": {"type": "string"}, "backend": backend},
        "a": {"regex": ".*", "backend": backend},
        '{"': {"json_object": True, "backend": backend},
    }
    for text, structured in points.items():
        point = cursor_of(structured).after_all(TOKENIZER.ids(text))
        assert point.allows(TOKENIZER.id(b"<")) and not point.allows(SPECIAL)
        assert not any(point.allows(token_id) for token_id in (-1, *range(VOCAB - 3, VOCAB + 1)))
    assert cursor_of(points['"']).after_all(TOKENIZER.ids('"<think>"')).allows(EOS)


def test_the_mutant_that_gives_special_tokens_their_text_is_caught(monkeypatch):
    """What xgrammar does with a fast tokenizer by itself."""
    from draftproof.grammar import vocabulary

    monkeypatch.setattr(vocabulary, "_special_ids", lambda tokenizer: {EOS})
    point = cursor_of({"json": {"type": "string"}}).after_all(TOKENIZER.ids('"'))
    assert point.allows(SPECIAL)


def test_the_end_is_every_eos_id_and_every_stop_id_without_text():
    made = grammars(eos_ids=(EOS, SPECIAL))
    at_end = cursor_of({"regex": "a"}, made).after_all(TOKENIZER.ids("a"))
    assert at_end.mask.nonzero()[0].tolist() == [EOS, SPECIAL]
    params = asking({"regex": "a\n?"}, stop_token_ids=[SPECIAL, *TOKENIZER.ids("\n")])
    at_end = cursor_of({"regex": "a\n?"}, stop_token_ids=params.stop_token_ids).after_all(TOKENIZER.ids("a"))
    assert at_end.ending_ids == {EOS, SPECIAL}
    assert at_end.mask.nonzero()[0].tolist() == [EOS, SPECIAL, *TOKENIZER.ids("\n")]
    assert at_end.after(SPECIAL).phase is Phase.ENDED
    assert at_end.after_all(TOKENIZER.ids("\n")).phase is Phase.INSIDE


@pytest.mark.parametrize("how", [{}, {"method": "ngram"}, {"method": "forced"}])
def test_stop_strings_and_stop_ids_end_the_output_inside_the_grammar(how):
    given = [
        asking({"regex": "(ab){9}"}, stop="bab", seed=1),
        asking({"regex": "(ab){9}"}, stop_token_ids=TOKENIZER.ids("b"), seed=1, allowed_token_ids=TOKENIZER.ids("ab")),
        asking({"regex": "(ab){9}"}, max_tokens=3, seed=1, allowed_token_ids=TOKENIZER.ids("ab")),
    ]
    outputs = engine(TOKENIZER, **how).generate([PROMPT] * 3, given)
    assert texts(outputs) == ["a", "a", "aba"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop", "stop", "length"]


def test_samples_of_one_prompt_have_a_cursor_each():
    given = {"json": {"enum": ["name", "nab", 12, True]}}
    for how in ({}, {"method": "forced"}):
        output = engine(TOKENIZER, **how).generate([PROMPT], asking(given, n=6, seed=1))[0]
        single = [engine(TOKENIZER).generate([PROMPT], asking(given, n=n, seed=1))[0].outputs[-1] for n in (1, 2)]
        assert output.outputs[0].token_ids == single[0].token_ids
        assert output.outputs[1].token_ids == single[1].token_ids
        assert {one.text for one in output.outputs} <= {'"name"', '"nab"', "12", "true"}
        assert len({one.text for one in output.outputs}) > 1


def test_a_cursor_is_its_tokens():
    """Built again from the committed tokens alone (a preempted request), from drafts or by commits: the same masks."""
    given = {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
    path = TOKENIZER.ids('{ "a":  12 }')
    walked = committed = cursor_of(given)
    for token_id in path:
        assert walked.after(token_id) is walked.after(token_id)
        walked, committed = walked.after(token_id), committed.committed([token_id])
        rebuilt = cursor_of(given).after_all(path[: path.index(token_id) + 1]) if path.count(token_id) == 1 else walked
        assert (walked.mask == committed.mask).all() and (rebuilt.mask == walked.mask).all()
    # Asking an earlier point again, after the parser has been elsewhere, changes nothing.
    first = cursor_of(given)
    before = first.after_all(TOKENIZER.ids("{")).mask.copy()
    first.after_all(path)
    again = first.after_all(TOKENIZER.ids("{"))
    again._mask = None
    assert (again.mask == before).all()
    with pytest.raises(ValueError, match="read-only"):
        again.mask[0] = True
    with pytest.raises(GrammarError, match="not one that the grammar allows"):
        first.committed(TOKENIZER.ids("x"))


def test_streams_and_traces_take_grammars(tmp_path):
    llm = engine(TOKENIZER, method="forced")
    given = asking({"choice": ["name: é", "nab"]}, seed=3)
    chunks = list(llm.stream_generate(PROMPT, given, trace=tmp_path / "trace.jsonl"))
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].output.text in ("name: é", "nab")
    assert ids([chunks[-1].output]) == ids(engine(TOKENIZER).generate([PROMPT], given))
    assert (tmp_path / "trace.jsonl").read_text().count("\n") == len(chunks[-1].output.outputs[0].token_ids)


class Straying:
    """Drafts one token that the target never takes."""

    method = "draft_model"
    proposes_without_confidence = True

    def __init__(self, token_id):
        self.token_id = token_id

    def propose(self, requests):
        return [Draft.of_token_ids(len(ask.context_ids), [self.token_id] * bool(ask.num_tokens)) for ask in requests]

    def observe(self, slot, context_ids, verdict):
        pass

    def release(self, slot):
        pass

    def confidence(self, slot, context_ids):
        return None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_into_a_dead_end_costs_nothing(backend):
    """After b no token spells z: that row is never used, and llguidance's parser, which gives up there, comes back."""
    small = SmallTokenizer([b"a", b"b", b"c"])
    law = LawTable(small.vocab_size, lambda context: [1, 50, 1, 50], exact=False)
    given = asking({"regex": "(a|c){3}|(a|c){0,2}bz", "backend": backend}, temperature=0.0)
    plain = engine(small, law=law).generate([[1]], given)
    drafted = engine(small, law=law, drafter=Straying(2)).generate([[1]], given)
    assert ids(drafted) == ids(plain) and texts(plain) == ["aaa"]
