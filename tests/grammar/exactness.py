"""A language small enough to enumerate: its law by brute force over texts, and the rows that production masks give.

Tokens: EOS 0, "a" 1, "b" 2, "ab" 3. The language is TEXTS. What a token may follow is found here by looking through the
texts, without a grammar library; the verified rows come from `masks_of`.
"""

from __future__ import annotations

import zlib
from fractions import Fraction

import numpy as np

from draftproof.core import ROOT
from draftproof.grammar import Grammars, masks_of
from draftproof.sampling import resolve
from draftproof.verify import get_verifier
from draftproof.verify.exact import enumerate_steps
from draftproof.verify.proposals import path_token_ids
from draftproof.verify.tables import LawTable, law_of
from tests.grammar.bytes_vocabulary import EOS, SmallTokenizer, asking

TOKENIZER = SmallTokenizer([b"a", b"b", b"ab"])
VOCAB = TOKENIZER.vocab_size
TEXTS = ("ab", "aab", "b", "bab")
PROMPT = (EOS,)
GRAMMARS = Grammars(TOKENIZER, VOCAB, [EOS])


def beginning(texts=TEXTS):
    params = asking({"choice": texts})
    return GRAMMARS.cursor(params, resolve(params, TOKENIZER, VOCAB, [EOS]))


def free_weights(which):
    """Weights of 1 to 5 that depend on the last two tokens."""
    return lambda context: [1 + zlib.crc32(repr((which, context[-2:], token)).encode()) % 5 for token in range(VOCAB)]


def allowed(output_ids, texts=TEXTS):
    """[V] bool: what may follow `output_ids`, from the texts alone."""
    if EOS in output_ids:
        return [token_id == EOS for token_id in range(VOCAB)]
    text = TOKENIZER.decode(output_ids)
    return [
        text in texts
        if token_id == EOS
        else any(full.startswith(text + TOKENIZER.decode([token_id])) for full in texts)
        for token_id in range(VOCAB)
    ]


def constrained(which="target", texts=TEXTS):
    """The target's law, by brute force."""
    weights = free_weights(which)

    def masked(context):
        may_follow = allowed(context[len(PROMPT) :], texts)
        if not any(may_follow):
            # No text of the language begins so: only a mutant gets here, and its law differs already.
            return weights(context)
        return [weight * may for weight, may in zip(weights(context), may_follow, strict=True)]

    return LawTable(VOCAB, masked, form="mixed")


def production_masks(context, draft):
    return masks_of(beginning().after_all(context[len(PROMPT) :]), draft)


def rows(context, draft, masks_of_draft=production_masks):
    """The verified rows: the free law under each row's mask."""
    weights, found = free_weights("target"), []
    masks = masks_of_draft(context, draft)
    for node, mask in zip(range(ROOT, len(draft)), masks, strict=True):
        kept = [Fraction(weight) for weight in weights(context + path_token_ids(draft, node))]
        if mask is not None:
            kept = [weight * int(may) for weight, may in zip(kept, mask, strict=True)]
        form = "PointMass" if np.count_nonzero(kept) == 1 else "Dense"
        found.append(law_of([weight / sum(kept) for weight in kept], form))
    return found


def step(verifier, drafter, masks_of_draft=production_masks):
    """A pass of the production verifier over these rows."""

    def run(context, noise):
        draft = drafter(context, noise)
        return get_verifier(verifier).verify(draft, rows(context, draft, masks_of_draft), noise).token_ids

    return run


def enumerated(verifier, drafter, masks_of_draft=production_masks, num_passes=2, texts=TEXTS):
    replay = get_verifier(verifier).guarantee == "replay"
    target = constrained(texts=texts)
    return enumerate_steps(step(verifier, drafter, masks_of_draft), target, num_passes, PROMPT, replay=replay)
