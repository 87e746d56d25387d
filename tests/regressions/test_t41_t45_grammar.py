"""T41 to T45: what public engines got wrong where a grammar meets a block of drafts. Through the engine."""

import numpy as np
import pytest

from draftproof.core import Draft
from draftproof.grammar import Phase, masks_of
from draftproof.verify.tables import LawTable
from tests.grammar.bytes_vocabulary import EOS, SPECIAL, ByteTokenizer, asking, engine, ids, texts

TOKENIZER = ByteTokenizer()
VOCAB = TOKENIZER.vocab_size


class Scripted:
    """Proposes the given token ids at the first pass, or a continuation of `text` at every pass."""

    method = "draft_model"
    proposes_without_confidence = True

    def __init__(self, first=(), num_prompt_tokens=1):
        self.first, self.num_prompt_tokens, self.asked = list(first), num_prompt_tokens, []

    def propose(self, requests):
        self.asked.append([len(request.context_ids) for request in requests])
        return [self._propose(request) for request in requests]

    def _propose(self, request):
        start = len(request.context_ids)
        done = start - self.num_prompt_tokens
        return Draft.of_token_ids(start, self.first[done : done + request.num_tokens])

    def observe(self, slot, context_ids, verdict):
        pass

    def release(self, slot):
        pass

    def confidence(self, slot, context_ids):
        return None


class Wanting:
    """A model that wants the tokens of `wanted`, in order, at its output positions, and then EOS."""

    def __init__(self, wanted, num_prompt_tokens=1):
        self.vocab_size, self.wanted, self.num_prompt_tokens = VOCAB, list(wanted), num_prompt_tokens

    def probs(self, context):
        done = len(context) - self.num_prompt_tokens
        weights = np.ones(VOCAB)
        weights[self.wanted[done] if done < len(self.wanted) else EOS] += 1000.0
        return (weights / weights.sum()).tolist()


PROMPT = TOKENIZER.ids("p")
GREEDY = {"temperature": 0.0}


def run(structured, wanted, drafts, **kw):
    """(outputs without drafts, outputs with these drafts) of the greedy engine."""
    plain = engine(TOKENIZER, law=Wanting(wanted)).generate([PROMPT], asking(structured, **GREEDY, **kw))
    llm = engine(TOKENIZER, law=Wanting(wanted), drafter=Scripted(drafts))
    return plain[0], llm.generate([PROMPT], asking(structured, **GREEDY, **kw))[0]


def test_t41_the_grammar_ends_inside_the_block():
    """[0-9]{2}, drafts 1 2 3: 1 and 2 are kept, then EOS; nothing raises on the rows behind the end."""
    plain, drafted = run({"regex": "[0-9]{2}"}, TOKENIZER.ids("123"), TOKENIZER.ids("123"))
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids == (*TOKENIZER.ids("12"), EOS)
    assert drafted.text == "12" and drafted.outputs[0].finish_reason == "stop"


def test_t41_masks_behind_the_end_allow_nothing_but_the_end():
    llm = engine(TOKENIZER)
    params = asking({"regex": "[0-9]{2}"})
    cursor = llm.admission.admit("r", PROMPT, params)[0].grammar
    draft = Draft.of_token_ids(1, [*TOKENIZER.ids("12"), EOS, EOS, *TOKENIZER.ids("3")])
    masks = masks_of(cursor, draft)
    assert [np.flatnonzero(mask).tolist() for mask in masks[2:5]] == [[EOS]] * 3
    assert masks[5] is None
    assert cursor.after_all([*TOKENIZER.ids("12"), EOS]).phase is Phase.ENDED


@pytest.mark.parametrize("num_right", [0, 1, 2, 3])
def test_t42_the_trial_walk_is_undone_and_the_committed_tokens_taken_in(num_right):
    """Drafts that the grammar allows, of which the target keeps some: the next pass's masks are the text's own."""
    wanted = TOKENIZER.ids("abcdabcd")
    drafts = [*wanted[:num_right], *TOKENIZER.ids("xxxx")[: 4 - num_right]]
    plain, drafted = run({"regex": "([abcd]|x){8}"}, wanted, drafts)
    assert drafted.text == plain.text == "abcdabcd"
    # A draft of its own at each later pass as well, all wrong but allowed.
    plain, drafted = run({"regex": "([abcd]|x){8}"}, wanted, [*drafts, *TOKENIZER.ids("xxxx")])
    assert drafted.text == plain.text == "abcdabcd"


def test_t43_rows_of_requests_with_three_drafts_and_with_none():
    """One batch: a constrained request with drafts, one without, a free one, one at its last token."""
    law = Wanting(TOKENIZER.ids("zzzz"))
    requests = [
        asking({"regex": "[ab]{4}"}, temperature=1.0, seed=1),
        asking({"regex": "[cd]{3}"}, temperature=1.0, seed=2),
        asking(None, temperature=1.0, seed=3, max_tokens=4, structured_outputs=None),
        asking({"regex": "[ef]{1,9}"}, temperature=1.0, seed=4, max_tokens=1),
    ]
    prompts = [PROMPT, PROMPT, PROMPT, PROMPT]
    plain = engine(TOKENIZER, law=law).generate(prompts, requests)

    class Ragged(Scripted):
        def _propose(self, request):
            if request.slot % 2:
                return Draft.empty(len(request.context_ids))
            return Draft.of_token_ids(len(request.context_ids), TOKENIZER.ids("aba")[: request.num_tokens])

    drafted = engine(TOKENIZER, law=law, drafter=Ragged()).generate(prompts, requests)
    assert ids(drafted) == ids(plain)
    found = texts(drafted)
    assert set(found[0]) <= set("ab") and len(found[0]) == 4
    assert set(found[1]) <= set("cd") and len(found[1]) == 3
    assert len(found[3]) == 1 and found[3] in "ef"


def test_t44_the_grammar_begins_inside_the_block():
    """Drafts x, marker, "]", "{": the row behind the marker is masked, "]" goes, "{" is never reached."""
    drafts = [*TOKENIZER.ids("x"), SPECIAL, *TOKENIZER.ids("]{")]
    wanted = [*TOKENIZER.ids("x"), SPECIAL, *TOKENIZER.ids("]]]]]")]
    given = {"json": {"const": {"a": 1}}, "start_after": "<think>", "backend": "llguidance"}
    plain, drafted = run(given, wanted, drafts, skip_special_tokens=False)
    assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    assert drafted.text.startswith("x<think>{") and not drafted.text.startswith("x<think>]")
    assert drafted.outputs[0].from_draft[:3] == (True, True, False)


@pytest.mark.parametrize("marker", ["<think>", (SPECIAL,), "ab", "}]"])
def test_t44_a_marker_anywhere_in_the_block(marker):
    """The same text with drafts of every length, whatever the marker's tokens."""
    spelled = [SPECIAL] if marker in ("<think>", (SPECIAL,)) else TOKENIZER.ids(marker)
    wanted = [*TOKENIZER.ids("xy"), *spelled, *TOKENIZER.ids("zz9zz")]
    for num_drafted in range(len(wanted) + 1):
        plain, drafted = run({"regex": "[0-9]{2}", "start_after": marker}, wanted, wanted[:num_drafted])
        assert drafted.outputs[0].token_ids == plain.outputs[0].token_ids
    after = plain.outputs[0].token_ids[2 + len(spelled) :]
    assert len(after) == 3 and after[-1] == EOS and TOKENIZER.decode(after).isdigit()


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
def test_t45_a_forbidden_draft_comes_first(verifier):
    """Drafts [forbidden, allowed]: nothing of them is kept, and the token that replaces the first is allowed."""
    law = LawTable(VOCAB, lambda context: [1] * VOCAB, exact=False)
    drafter = Scripted([*TOKENIZER.ids("z"), *TOKENIZER.ids("a")])
    llm = engine(TOKENIZER, law=law, drafter=drafter, verifier=verifier)
    outputs = llm.generate([PROMPT] * 20, [asking({"regex": "[ab]{3}"}, seed=seed) for seed in range(20)])
    for output in outputs:
        assert set(output.text) <= set("ab") and len(output.text) == 3
        assert not output.outputs[0].from_draft[0]
    assert len(set(texts(outputs))) > 2
