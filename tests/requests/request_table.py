"""The law that a request with given parameters has, as an exact table: what every verifier must emit.

The law after a context is made by the package's own admission, chain, grammar and sampler states, by committing the
context token by token without any draft. So `prove`'s enumeration covers every parameter as plain decoding honours it.
"""

from __future__ import annotations

from fractions import Fraction

import torch

from draftproof import SamplingParams
from draftproof.core import Decision, Draft, Outcome, PointMass, Purpose, Verdict
from draftproof.engine.admission import Admission
from draftproof.engine.laws import laws_of
from draftproof.requests import EXAMPLES, toy_tokenizer
from draftproof.sampling import SamplerChain
from draftproof.targets.toy import TableTarget
from draftproof.verify.oracle import as_fraction
from draftproof.verify.tables import LawTable, Table, law_of

EOS, VOCAB = 0, 3
PROMPT = (1,)

VALUES = {
    "min_tokens": {"min_tokens": 2, "stop_token_ids": [2]},
    "allowed_token_ids": {"allowed_token_ids": [0, 2]},
    "bad_words": {"bad_words": ["ba", "bb"]},
    "structured_outputs": {"structured_outputs": {"regex": "(ab|bb|a)+"}},
    "dry_sequence_breakers": {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_sequence_breakers": ["b"]},
    "dry_allowed_length": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "dry_multiplier": {"dry_multiplier": 2.0, "dry_allowed_length": 1},
    "dry_base": {"dry_multiplier": 1.0, "dry_base": 3.0, "dry_allowed_length": 1},
    "dry_penalty_last_n": {"dry_multiplier": 1.0, "dry_allowed_length": 1, "dry_penalty_last_n": 2},
    "epsilon_cutoff": {"epsilon_cutoff": 0.3},
    "eta_cutoff": {"eta_cutoff": 0.5},
    "xtc_threshold": {"xtc_probability": 0.6, "xtc_threshold": 0.01},
    "mirostat_tau": {"mirostat": 2, "mirostat_tau": 0.6},
    "mirostat": {"mirostat": 2, "mirostat_tau": 0.5, "mirostat_eta": 1.0},
    "mirostat_eta": {"mirostat": 1, "mirostat_tau": 0.5, "mirostat_eta": 0.4},
    "top_p": {"top_p": 0.6},
}
"""Fields for a vocabulary of three tokens (EOS, a, b), where the example's would do nothing on it."""


def fields_for(name):
    return VALUES.get(name) or EXAMPLES[name].fields_of(name)


def raw_table(seed=3):
    """Rational weights that depend on the last two tokens."""
    import random

    def weights(context):
        source = random.Random(f"{seed} {context[-2:]}")
        values = [source.randint(1, 9) for _ in range(VOCAB)]
        return [Fraction(value, sum(values)) for value in values]

    return LawTable(VOCAB, weights)


class ByPosition:
    """Noise whose persistent coins are fixed: heads at even positions. What is proved is the law given these coins."""

    def coin(self, key, numerator, denominator=1):
        if key.purpose is not Purpose.XTC:
            raise AssertionError(f"the law asked for {key}")
        return key.position % 2 == 0

    def choice(self, key, weights, token_ids=None):
        raise AssertionError("a law draws nothing")


class RequestTable(Table):
    """Laws of a request with `fields`; after EOS it is over, and EOS is all that follows."""

    def __init__(self, fields):
        super().__init__(VOCAB)
        self.raw = raw_table()
        target = TableTarget(self.raw, eos_token_ids=[EOS])
        self._admission = Admission(target, toy_tokenizer(), SamplerChain(), None)
        self._params = SamplingParams(**{"max_tokens": 64, "seed": 1, **fields})

    def _law(self, context):
        (request,) = self._admission.admit("r", list(PROMPT), self._params)
        request.noise = ByPosition()
        for token_id in context[len(PROMPT) :]:
            law = self._row(request)
            if not law.prob(token_id):
                return PointMass(EOS)  # a context that no path reaches
            decision = Decision(len(request.context_ids), -1, None, token_id, Outcome.BONUS, None, None)
            request.commit(Verdict((token_id,), (), (decision,)), 0, None, [law])
            if request.is_finished:
                return PointMass(EOS)
        law = self._row(request)
        if isinstance(law, PointMass):
            return law
        weights = [as_fraction(law.prob(token_id)) for token_id in range(VOCAB)]
        total = sum(weights, Fraction(0))
        return law_of([weight / total for weight in weights], "Sparse" if 0 in weights else "Dense")

    def _row(self, request):
        probs = [float(prob) for prob in self.raw.probs(tuple(request.context_ids))]
        logits = torch.tensor([probs], dtype=torch.float32).log()
        (row,) = laws_of(self._admission.chain, request, Draft.empty(len(request.context_ids)), logits)
        if isinstance(row, Exception):
            raise row
        return row
