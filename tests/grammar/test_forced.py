"""Forced tokens: what they are, that they are accepted under every verifier, and what they spare."""

import numpy as np
import pytest

from draftproof.core import Dense, Draft, DrawnWith, Key, Purpose
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.forced import ForcedDrafter, propose_after_forced
from draftproof.drafters.ngram import NgramDrafter
from draftproof.grammar import Grammars, forced_ids
from draftproof.noise import KeyedNoise
from draftproof.sampling import History, resolve
from tests.engine.drafting import TableDrafter
from tests.grammar.bytes_vocabulary import EOS, ByteTokenizer, QuickTable, asking, engine, ids

TOKENIZER = ByteTokenizer()
GRAMMARS = Grammars(TOKENIZER, TOKENIZER.vocab_size, [EOS])
PROMPT = TOKENIZER.ids("p")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ab", "ac"]}, "is_new": {"type": "boolean"}},
    "required": ["name", "is_new"],
}
COMPACT = {"json": SCHEMA, "disable_any_whitespace": True}


def cursor_of(structured):
    params = asking(structured)
    return GRAMMARS.cursor(params, resolve(params, TOKENIZER, TOKENIZER.vocab_size, [EOS]))


def spelled(token_ids):
    return [TOKENIZER.token_bytes[token_id] for token_id in token_ids]


def test_what_is_forced():
    assert spelled(forced_ids(cursor_of(COMPACT), 20)) == [b'{"', b"name", b'": ', b'"a']
    assert spelled(forced_ids(cursor_of(COMPACT), 2)) == [b'{"', b"name"]
    assert forced_ids(cursor_of(COMPACT), 0) == ()
    assert forced_ids(cursor_of({"regex": "[ab]c"}), 9) == ()
    # Where the text may end there is a choice; where it must, the end is forced, and nothing after it.
    assert spelled(forced_ids(cursor_of({"regex": "a(bc)?"}), 9)) == [b"a"]
    assert forced_ids(cursor_of({"regex": "xyz"}), 9) == (*TOKENIZER.ids("xyz"), EOS)
    assert forced_ids(cursor_of({"regex": "x", "start_after": "m"}), 9) == ()
    # A rule that never ends forces no more than was asked for.
    assert len(forced_ids(cursor_of({"grammar": 'root ::= "x" root'}), 7)) == 7


def test_one_allowed_token_is_accepted_under_every_verifier():
    """xyz and the end: one pass of four drafted tokens, whatever the model wants."""
    for verifier in ("keyed", "match", "rejection", "block"):
        llm = engine(TOKENIZER, method="forced", verifier=verifier)
        output = llm.generate([PROMPT], asking({"regex": "xyz"}, seed=1))[0]
        assert output.outputs[0].token_ids == (*TOKENIZER.ids("xyz"), EOS)
        assert output.outputs[0].from_draft == (True,) * 4
        assert output.metrics.num_passes == 1


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
@pytest.mark.parametrize("inner", [None, TableDrafter(QuickTable(TOKENIZER, 1), ragged=False)])
def test_forced_tokens_spare_passes(verifier, inner):
    params = [asking(COMPACT, seed=seed) for seed in range(4)]
    plain = engine(TOKENIZER).generate([PROMPT] * 4, params)
    how = {"drafter": inner} if inner else {"method": "forced"}
    drafted = engine(TOKENIZER, verifier=verifier, **how).generate([PROMPT] * 4, params)
    assert verifier != "keyed" or ids(drafted) == ids(plain)
    num_passes = [sum(output.metrics.num_passes for output in outputs) for outputs in (plain, drafted)]
    assert num_passes[1] < 0.75 * num_passes[0]


def test_length_auto_drafts_forced_tokens_from_the_first_pass():
    """The policy begins with plain passes; forced tokens are drafted in these as well, and the policy hears nothing."""
    llm = engine(TOKENIZER, method="ngram", draft_length="auto")
    output = llm.generate([PROMPT], asking({"regex": "xyz"}, seed=1))[0]
    assert output.metrics.num_passes == 1
    output = llm.generate([PROMPT], asking(COMPACT, seed=1))[0]
    assert output.metrics.num_passes < len(output.outputs[0].token_ids)


def test_a_request_without_a_grammar_is_left_alone():
    params = asking(None, seed=1)
    outputs = [engine(TOKENIZER, method=method).generate([PROMPT], params)[0] for method in ("forced", "ngram")]
    assert ids(outputs[:1]) == ids(outputs[1:]) == ids(engine(TOKENIZER).generate([PROMPT], params))
    assert outputs[0].metrics.speculative_decoding["num_draft_tokens"] == 0


class Recorded:
    """Noise that remembers the keys it was asked for."""

    def __init__(self, seed):
        self.noise, self.keys = KeyedNoise(seed), []

    def coin(self, key, numerator, denominator=1):
        return self.noise.coin(key, numerator, denominator)

    def choice(self, key, weights, token_ids=None):
        self.keys.append(key)
        return self.noise.choice(key, weights, token_ids)


def request(structured, num_tokens, noise, *, share=False, context_ids=PROMPT):
    cursor = cursor_of(structured)
    params = asking(structured)
    row = resolve(params, TOKENIZER, TOKENIZER.vocab_size, [EOS])
    return DraftRequest(0, context_ids, num_tokens, noise, share, row, History(context_ids), cursor,
                        forced_ids(cursor, num_tokens))  # fmt: skip


class Drawing(ForcedDrafter):
    """Draws a chain from one law, whatever comes before."""

    method = "draft_model"

    def propose(self, requests):
        return [self._propose(request) for request in requests]

    def _propose(self, request):
        draft = Draft.empty(len(request.context_ids))
        law = Dense(np.full(TOKENIZER.vocab_size, 1 / TOKENIZER.vocab_size))
        for _ in range(request.num_tokens):
            draft = draft.draw(law, request.noise, share_target_field=request.share_target_field)
        return draft


def test_a_drafters_tokens_come_with_the_keys_of_the_whole_draft():
    """Fresh keys are those of the pass, numbered after the forced tokens: none is met again in the next pass."""
    noise = Recorded(5)
    [draft] = propose_after_forced(Drawing(), [request({"regex": "xy[ab]{9}"}, 5, noise)])
    assert draft.start == 1 and draft.token_ids[:2] == tuple(TOKENIZER.ids("xy")) and len(draft) == 5
    assert set(noise.keys) == {Key(Purpose.DRAFT, 1, node) for node in (2, 3, 4)}
    assert draft.drawn_with is DrawnWith.FRESH and draft.is_chain
    # The same tokens as if the drafter itself had drawn them after the forced ones.
    direct = Draft.of_token_ids(1, TOKENIZER.ids("xy"))
    for law in draft.laws[2:]:
        direct = direct.draw(law, KeyedNoise(5))
    assert direct.token_ids == draft.token_ids
    shared = propose_after_forced(Drawing(), [request({"regex": "xy[ab]{9}"}, 5, Recorded(5), share=True)])[0]
    assert shared.drawn_with is DrawnWith.TARGET_FIELD


def test_a_lookup_is_cut_at_what_the_grammar_forbids():
    context_ids = TOKENIZER.ids("xyabzaxy")
    asked = request({"regex": "ab[c-y]{9}"}, 6, Recorded(1), context_ids=context_ids)
    [draft] = propose_after_forced(NgramDrafter(1, 3), [asked])
    assert spelled(draft.token_ids) == [b"ab"]
    asked = request({"regex": "[ab]{2}[c-y]{9}"}, 6, Recorded(1), context_ids=context_ids)
    [draft] = propose_after_forced(NgramDrafter(1, 3), [asked])
    assert spelled(draft.token_ids) == [b"a", b"b"]


def test_a_drafter_of_hidden_states_is_not_asked_behind_forced_tokens():
    class Learned(Drawing):
        method = "eagle3"

    [draft] = propose_after_forced(Learned(), [request({"regex": "xy[ab]{9}"}, 5, Recorded(1))])
    assert draft.token_ids == tuple(TOKENIZER.ids("xy"))
    [draft] = propose_after_forced(Learned(), [request({"regex": "[ab]{9}"}, 5, Recorded(1))])
    assert len(draft) == 5
