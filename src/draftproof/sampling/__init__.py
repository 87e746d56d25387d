"""Logits to law: the one sampler chain, one small file for each processor and filter."""

from draftproof.sampling.allowed import Mask
from draftproof.sampling.bad_words import bad_word_token_ids
from draftproof.sampling.chain import SamplerChain
from draftproof.sampling.history import History
from draftproof.sampling.presets import PRESETS, Preset, Step
from draftproof.sampling.row_params import RowParams, resolve
from draftproof.sampling.top_k import TopKTies
from draftproof.sampling.top_p import TopPTies

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
    "bad_word_token_ids",
    "resolve",
]
