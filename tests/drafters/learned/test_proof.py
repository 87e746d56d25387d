"""By enumeration: a draft that ends where its head is unsure is exact under ratio tests, whatever the head says.

The head's answer before token k is a function of the tokens before it, as `block_drafter.py` computes it: here every
such function of the last token, over two tables. The wrong twin asks after the token was drawn.
"""

import itertools
from fractions import Fraction

import pytest

from draftproof.core import Draft
from draftproof.verify import get_verifier
from draftproof.verify.exact import enumerate_steps, speculative_step
from draftproof.verify.tables import Reformed, random_pair

VOCAB_SIZE, LENGTH = 3, 2


class StopsBefore:
    """Draws token k from the table's law if `go_on[last token]`; the draft ends otherwise."""

    def __init__(self, table, go_on, looks):
        self.table, self.go_on, self.looks = table, go_on, looks

    def __call__(self, context, noise):
        draft = Draft.empty(len(context))
        for _ in range(LENGTH):
            path = context + draft.token_ids
            if not self.looks and not self.go_on[path[-1]]:
                break
            longer = draft.draw(self.table.law_given(path, noise), noise)
            if self.looks and not self.go_on[longer.token_ids[-1]]:
                break
            draft = longer
        return draft


def errors(verifier, form, looks):
    found = []
    for go_on in itertools.product((False, True), repeat=VOCAB_SIZE):
        pair = random_pair("plain", VOCAB_SIZE, 1)
        drafter = StopsBefore(Reformed(pair.draft, form), go_on, looks)
        step = speculative_step(get_verifier(verifier), pair.target, drafter)
        found.append(enumerate_steps(step, pair.target, 1, (0,)).max_error)
    return found


@pytest.mark.parametrize("form", ["Dense", "Sparse"])
@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_stopping_before_the_draw_is_exact(verifier, form):
    assert errors(verifier, form, looks=False) == [Fraction(0)] * 2**VOCAB_SIZE


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_stopping_after_the_draw_is_not(verifier):
    """DSpark's appendix A: a retrospective choice. (Where the draft isn't marked by `truncated`, that is a lie.)"""
    assert max(errors(verifier, "Dense", looks=True)) > 0
