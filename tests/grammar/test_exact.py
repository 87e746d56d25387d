"""The law under a grammar is exact, for every verifier and topology: enumerated over two passes in fractions."""

from itertools import product

import pytest

from draftproof.config import TREE_VERIFIERS
from draftproof.core import Draft, Siblings
from draftproof.drafters.base import DraftRequest
from draftproof.drafters.forced import propose_after_forced
from draftproof.grammar import forced_ids, masks_of
from draftproof.sampling import History, resolve
from draftproof.verify import get_verifier
from draftproof.verify.exact import enumerate_steps
from draftproof.verify.proposals import Fixed, Ranked, Sampled, SampledTree
from draftproof.verify.tables import LawTable
from tests.grammar.bytes_vocabulary import asking
from tests.grammar.exactness import PROMPT, TEXTS, TOKENIZER, VOCAB, beginning, constrained, enumerated, free_weights
from tests.grammar.exactness import allowed as allowed_by_the_texts

FREE = LawTable(VOCAB, free_weights("draft"))
MASKED = constrained("draft")


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
@pytest.mark.parametrize("drafter", [Sampled(FREE, (1, 1)), Sampled(MASKED, (1, 1)), Ranked(FREE, (1, 1, 1))],
                         ids=["draft law without the mask", "draft law with the mask", "point masses"])  # fmt: skip
def test_chains(verifier, drafter):
    found = enumerated(verifier, drafter)
    assert found.max_error == 0
    assert verifier != "keyed" or found.num_replay_mismatches == 0


@pytest.mark.parametrize("verifier", ["keyed", "match"])
@pytest.mark.parametrize("drafter", [Sampled(FREE, (2, 1)), Ranked(FREE, (2, 2)), Sampled(MASKED, (2, 1))])
def test_trees(verifier, drafter):
    found = enumerated(verifier, drafter, num_passes=1)
    assert found.max_error == 0
    assert verifier != "keyed" or found.num_replay_mismatches == 0


@pytest.mark.parametrize("verifier", TREE_VERIFIERS)
def test_drawn_trees_under_the_rules_for_them(verifier):
    siblings = get_verifier(verifier).siblings or Siblings.INDEPENDENT
    assert enumerated(verifier, SampledTree(FREE, (2, 1), siblings), num_passes=1).max_error == 0
    assert enumerated(verifier, SampledTree(MASKED, (2,), siblings), num_passes=2).max_error == 0


@pytest.mark.parametrize("token_ids", list(product(range(VOCAB), repeat=2)))
def test_every_draft_of_two_tokens(token_ids):
    """Forbidden first (T45), forbidden second, EOS inside (T41), all of them."""
    for verifier in ("keyed", "match", "rejection", "block"):
        assert enumerated(verifier, Fixed((1, 1), token_ids), num_passes=1).max_error == 0


def test_the_masks_are_the_languages_own():
    """Every token sequence of up to four tokens: the cursor allows what the texts allow."""
    num_texts = 0
    for length in range(5):
        for path in product(range(VOCAB), repeat=length):
            cursor = beginning()
            for position, token_id in enumerate(path):
                expected = allowed_by_the_texts(path[:position])[token_id]
                assert cursor.allows(token_id) == expected
                if not expected:
                    break
                cursor = cursor.after(token_id)
            else:
                assert cursor.mask.tolist() == allowed_by_the_texts(path)
                num_texts += bool(path and path[-1] == 0 and TOKENIZER.decode(path) in TEXTS)
    assert num_texts >= 2 * len(TEXTS)
    assert PROMPT == (0,)


FORCING = ("aba", "abb", "abab")


class AfterForced:
    """What the engine drafts: what the grammar forces, then a chain drawn from a law, through the production code."""

    method = "draft_model"

    def __init__(self, table, num_tokens):
        self.table, self.num_tokens = table, num_tokens

    def __call__(self, context, noise):
        cursor = beginning(FORCING).after_all(context[len(PROMPT) :])
        row = resolve(asking(None), None, VOCAB, [0])
        lead = forced_ids(cursor, self.num_tokens)
        ask = DraftRequest(0, context, self.num_tokens, noise, False, row, History(context), cursor, lead)
        return propose_after_forced(self, [ask])[0]

    def propose(self, requests):
        return [self._propose(request) for request in requests]

    def _propose(self, request):
        context, draft = tuple(request.context_ids), Draft.empty(len(request.context_ids))
        for _ in range(request.num_tokens):
            draft = draft.draw(self.table.law(context + draft.token_ids), request.noise)
        return draft


@pytest.mark.parametrize("verifier", ["keyed", "match", "rejection", "block"])
@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_forced_tokens_and_drawn_ones_after_them(verifier, num_tokens):
    """The spelling "ab" is a guess, what is drawn after it is not: both passes, in fractions."""

    def masks(context, draft):
        return masks_of(beginning(FORCING).after_all(context[len(PROMPT) :]), draft)

    found = enumerated(verifier, AfterForced(FREE, num_tokens), masks, texts=FORCING)
    assert found.max_error == 0 and len(found.law) > 3
    assert verifier != "keyed" or found.num_replay_mismatches == 0


def test_the_mutant_that_emits_forced_text_as_it_spells_it_is_caught():
    """Jump-forward decoding without verification: the text is forced, its tokens are not."""
    drafter = AfterForced(FREE, 1)
    emitted = enumerate_steps(lambda context, noise: drafter(context, noise).token_ids, constrained(texts=FORCING))
    assert emitted.total_variation > 0
