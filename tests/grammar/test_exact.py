"""The law under a grammar is exact, for every verifier and topology: enumerated over two passes in fractions."""

from itertools import product

import pytest

from draftproof.config import TREE_VERIFIERS
from draftproof.core import Siblings
from draftproof.verify import get_verifier
from draftproof.verify.proposals import Fixed, Ranked, Sampled, SampledTree
from draftproof.verify.tables import LawTable
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
