"""Does the model, driven through our cache, masks and positions, compute what it computes by itself?

Architectures differ in what they read from the arguments: some take positions from the mask, some ignore a prepared
mask. Instead of a list of names, the first layers are run over a few tokens twice: in one plain call without a cache,
and as a prefill and a scored block. Rounding moves the logits by a small part of their spread, a wrong mask or
position by the order of the spread itself; the limits below lie between, and decide nothing about exactness.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from draftproof.errors import UnsupportedModelError
from draftproof.targets.base import ScoreRequest

if TYPE_CHECKING:
    from draftproof.targets.hf import HFTarget

NUM_TOKENS, NUM_PREFILLED, NUM_LAYERS = 12, 5, 4
SEED = 12
LIMITS = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


@torch.no_grad()
def check_driving(target: HFTarget) -> None:
    """Raises UnsupportedModelError where our forward and the model's own differ by more than rounding."""
    num_tokens = min(NUM_TOKENS, target.max_model_len)
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, target.vocab_size, (num_tokens,), generator=generator)
    prefilled = min(NUM_PREFILLED, num_tokens - 1)
    with target.borrowed(target.shapes, NUM_LAYERS, num_tokens):
        own = target.model(input_ids=tokens[None].to(target.device), use_cache=False).logits[0].float()
        try:
            target.prefill(0, tokens[:prefilled].tolist())
            ours = target.score([ScoreRequest(0, tuple(tokens[prefilled:].tolist()))])[0].float()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever the model's code raises when it meets arguments that it wasn't made for
            raise UnsupportedModelError(
                f"{type(target.model).__name__} doesn't run with explicit positions, a prepared mask and a cache with "
                f"slots ({type(error).__name__}: {error}), so it can't be decoded exactly"
            ) from error
    spread = (own.amax() - own.amin()).item()
    difference = (ours - own[prefilled:]).abs().amax().item()
    if not difference <= LIMITS[target.dtype] * spread:
        raise UnsupportedModelError(
            f"{type(target.model).__name__} gives other logits through a cache with explicit positions and masks than "
            f"in one plain call (largest difference {difference:.3g}, spread of the logits {spread:.3g}), so it can't "
            "be decoded exactly; give a model with rotary or learned positions and plain causal attention"
        )
