"""The steps of a chain. A preset puts them into an order; the text is what `describe` prints."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Step(Enum):
    """One step. Masks and processors change logits one by one; filters look at the whole row and drop tokens."""

    ALLOWED = "allowed_token_ids and a row's own mask: every other token is masked"
    BAD_WORDS = "bad_words: the token that would complete one is masked"
    MIN_TOKENS = "min_tokens: EOS and stop_token_ids are masked while the output is shorter"
    BIAS = "logit_bias: added to the logit; -inf masks"
    NO_REPEAT = "no_repeat_ngram_size: the token that would repeat an n-gram of prompt and output is masked"
    CUSTOM = "logits_processors, in the order given; masked tokens stay masked"
    PENALTIES = "repetition_penalty, then frequency_penalty, then presence_penalty"
    REPETITION = "repetition_penalty"
    DRY = "dry_multiplier: the token that would extend a repetition is penalised"
    TEMPERATURE = "temperature: divides; 0 takes the largest logit, the lowest id on ties"
    TOP_N_SIGMA = "top_n_sigma: keeps logits within n standard deviations of the largest"
    MIN_P = "min_p: keeps p >= min_p * max p; ties are kept"
    TOP_K = "top_k"
    TOP_P = "top_p: keeps the largest until their mass, renormalised over what is left, reaches top_p; at least one"
    TYPICAL_P = "typical_p: keeps the surprises closest to the entropy"
    EPSILON = "epsilon_cutoff: keeps p >= epsilon, and the largest"
    ETA = "eta_cutoff: keeps p >= min(eta, sqrt(eta) * exp(-entropy)), and the largest"
    XTC = "xtc_probability: by the position's own coin, excludes the top choices"
    MIROSTAT = "mirostat: cuts the row so that the surprise stays near mirostat_tau; refuses every other filter"


FIELD_OF: Final = {
    Step.TOP_N_SIGMA: "top_n_sigma",
    Step.MIN_P: "min_p",
    Step.TOP_K: "top_k",
    Step.TOP_P: "top_p",
    Step.TYPICAL_P: "typical_p",
    Step.EPSILON: "epsilon_cutoff",
    Step.ETA: "eta_cutoff",
    Step.XTC: "xtc_probability",
    Step.MIROSTAT: "mirostat",
}
"""The filters, each with the field of SamplingParams that turns it on."""
PENALTY_STEPS: Final = (Step.PENALTIES, Step.REPETITION)
