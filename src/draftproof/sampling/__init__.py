"""Logits to law: the one sampler chain, one small file for each processor and filter."""

from draftproof.sampling.allowed import Mask
from draftproof.sampling.bad_words import bad_word_token_ids
from draftproof.sampling.chain import SamplerChain
from draftproof.sampling.history import History
from draftproof.sampling.path import laws_along
from draftproof.sampling.preset import Preset
from draftproof.sampling.presets import PRESETS
from draftproof.sampling.processed import allowed_mask
from draftproof.sampling.resolve import resolve
from draftproof.sampling.row_params import RowParams
from draftproof.sampling.steps import Step
from draftproof.sampling.top_k import TopKTies
from draftproof.sampling.top_p import TopPTies
from draftproof.sampling.typical_p import TypicalTies
from draftproof.sampling.xtc import XtcTies

__all__ = [
    "PRESETS",
    "History",
    "Mask",
    "Preset",
    "RowParams",
    "SamplerChain",
    "Step",
    "TopKTies",
    "TopPTies",
    "TypicalTies",
    "XtcTies",
    "allowed_mask",
    "bad_word_token_ids",
    "laws_along",
    "resolve",
]
