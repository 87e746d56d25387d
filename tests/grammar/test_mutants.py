"""Each rule of the masks has a wrong twin, named after the bug that it repeats, and enumeration catches it.

A mutant is caught if its law differs from the target's, while production's on the same instance is exact.
"""

import numpy as np
import pytest

from draftproof.core import ROOT, Draft
from draftproof.grammar import masks_of
from draftproof.verify.proposals import Fixed, Sampled
from draftproof.verify.tables import LawTable
from tests.grammar.exactness import EOS, PROMPT, TOKENIZER, VOCAB, beginning, enumerated, free_weights, production_masks

FREE = LawTable(VOCAB, free_weights("draft"))
A, B, AB = 1, 2, 3


def at(context):
    return beginning().after_all(context[len(PROMPT) :])


def advanced_by_rejected_drafts(drafter):
    """T42: the trial walk over the drafts of a pass is not undone, and the committed tokens come on top."""

    def masks(context, draft):
        cursor = beginning()
        output = context[len(PROMPT) :]
        if output:
            tried = drafter(PROMPT, None).token_ids
            for token_id in (*tried, *output[len(tried) :]):
                cursor = cursor.after(token_id) or cursor
        return masks_of(cursor, draft)

    return masks


def first_rows_mask_for_all(context, draft):
    """T43's neighbour: one mask for the block."""
    return [production_masks(context, draft)[0]] * (len(draft) + 1)


def not_rolled_back_between_branches(context, draft):
    """A tree walked depth first by one matcher that only goes forward: the second branch stands on the first."""
    point, found = at(context), [at(context).mask]
    for token_id in draft.token_ids:
        point = point.after(token_id) or point
        found.append(point.mask)
    return found


def end_allowed_early(context, draft):
    """EOS wherever something else is allowed as well."""
    return [None if mask is None else mask | (np.arange(VOCAB) == EOS) for mask in production_masks(context, draft)]


def end_forgotten(context, draft):
    """EOS never: a text that could end goes on or dies (only where something is left)."""

    def without(mask):
        left = mask & (np.arange(VOCAB) != EOS)
        return left if left.any() else mask

    return [None if mask is None else without(mask) for mask in production_masks(context, draft)]


def bonus_row_unmasked(context, draft):
    """The row after the last drafted token is not masked."""
    return [*production_masks(context, draft)[:-1], None]


def draft_rows_unmasked(context, draft):
    """Only the row after the context is masked, as for a plain step."""
    return [production_masks(context, draft)[0], *[None] * len(draft)]


def shifted_by_one(context, draft):
    """Row i has the mask of row i + 1 (T17 for masks)."""
    right = production_masks(context, draft)
    return [*right[1:], right[-1]]


def late_by_one(context, draft):
    """A node's mask is its parent's: the token itself was not taken in."""
    right = production_masks(context, draft)
    return [right[0], *(right[parent + 1] for parent in draft.parents)]


def free_after_the_end(context, draft):
    """T41: a matcher that has ended gives no mask."""
    right = production_masks(context, draft)
    ended = [EOS in context[1:] or EOS in [draft.token_ids[i] for i in draft.path_to(node)] for node in
             range(ROOT, len(draft))]  # fmt: skip
    return [None if over else mask for mask, over in zip(right, ended, strict=True)]


def rows_of_a_longer_draft(context, draft):
    """T43: a batch whose rows are cut by the longest draft: a short one reads the rows of a neighbour."""
    neighbour = masks_of(at(context), Draft.of_token_ids(len(context), [AB]))
    return [neighbour[-1], *production_masks(context, draft)[1:]]


CHAIN = Sampled(FREE, (1, 1))
MUTANTS = {
    "state advanced by rejected drafts": (advanced_by_rejected_drafts(Fixed((1,), (B,))), Fixed((1,), (B,)), 2),
    "mask of the block's first row for all rows": (first_rows_mask_for_all, CHAIN, 1),
    "matcher not rolled back between branches": (not_rolled_back_between_branches, Fixed((2,), (A, B)), 1),
    "EOS allowed early": (end_allowed_early, CHAIN, 1),
    "EOS forgotten": (end_forgotten, CHAIN, 1),
    "bonus row unmasked": (bonus_row_unmasked, CHAIN, 1),
    "draft rows unmasked": (draft_rows_unmasked, CHAIN, 1),
    "mask shifted by one": (shifted_by_one, CHAIN, 1),
    "mask late by one": (late_by_one, CHAIN, 1),
    "free after the end": (free_after_the_end, Fixed((1, 1), (B, EOS)), 1),
    "rows of a longer draft": (rows_of_a_longer_draft, CHAIN, 1),
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("verifier", ["keyed", "match"])
def test_the_mutant_is_caught(name, verifier):
    masks, drafter, num_passes = MUTANTS[name]
    assert enumerated(verifier, drafter, masks, num_passes).total_variation > 0
    assert enumerated(verifier, drafter, num_passes=num_passes).max_error == 0


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("name", [name for name, (_, drafter, _) in MUTANTS.items() if drafter is CHAIN])
def test_the_mutant_is_caught_under_a_ratio_test(name, verifier):
    masks, drafter, num_passes = MUTANTS[name]
    assert enumerated(verifier, drafter, masks, num_passes).total_variation > 0
    assert enumerated(verifier, drafter, num_passes=num_passes).max_error == 0


def test_there_are_as_many_as_the_rules():
    assert len(MUTANTS) >= 6
    assert TOKENIZER.decode([A, B, AB]) == "abab"
