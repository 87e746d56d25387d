"""Tables and engines for engine tests: a small vocabulary, laws that depend on the last tokens."""

from __future__ import annotations

import math
import random

from draftproof import LLM, SamplingParams
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import LawTable

VOCAB = 6


def table(seed=0, sharpness=2.0, vocab_size=VOCAB):
    """Weights exp(sharpness * normal) that depend on the last two tokens."""

    def weights(context):
        source = random.Random(f"{seed} {context[-2:]}")
        weights = [math.exp(sharpness * source.gauss(0, 1)) for _ in range(vocab_size)]
        return [weight / sum(weights) for weight in weights]

    return LawTable(vocab_size, weights, exact=False)


def deep_table(seed=0):
    """Laws that depend on the whole context, so that one wrong entry shows."""

    def weights(context):
        source = random.Random(f"{seed} {tuple(context)}")
        raw = [math.exp(2 * source.gauss(0, 1)) for _ in range(VOCAB)]
        return [weight / sum(raw) for weight in raw]

    return LawTable(VOCAB, weights, exact=False)


def engine(
    target_table, *, num_slots=1, method="ngram", drafter=None, verifier="keyed", tokens=5, length="fixed", **kw
):
    """An LLM over a table; method None decodes plainly."""
    target = TableTarget(target_table, num_slots=num_slots, **kw)
    if method is None:
        return LLM.from_target(target, None)
    config = {
        "method": method if drafter is None else "ngram",
        "num_speculative_tokens": tokens,
        "draft_length": length,
        "verifier": verifier,
        "prompt_lookup_min": 1,
    }
    return LLM.from_target(target, None, speculative_config=config, drafter=drafter)


def params(**kw):
    return SamplingParams(**{"max_tokens": 40, "detokenize": False, **kw})


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]
