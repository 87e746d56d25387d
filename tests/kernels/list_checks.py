"""What the kernels must do of tokens that they list. As `checks.py`."""

from draftproof.params import SamplingParams
from tests.kernels.checks import draws_as_the_reference, logits_of


def check_logits_that_differ_in_their_last_bits(kernels):
    """Whole floats, about ten in each step of a bfloat16: which of them is the k-th, and where top-p ends."""
    logits = 4.0 + logits_of(24, 250, spread=1.0).float() / 8
    logits += logits_of(24, 250, spread=1.0, seed=4).float() / 64
    for params in (SamplingParams(top_k=50), SamplingParams(top_k=90, top_p=0.6)):
        draws_as_the_reference(kernels, logits, params)
