"""Tiny random llamas behind HFTarget, in float32: one-row and many-row forwards agree to about 1e-6."""

from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget

VOCAB_SIZE = 24
MAX_LENGTH = 64


def tiny_llama(seed: int, *, vocab_size: int = VOCAB_SIZE, num_layers: int = 2) -> LlamaForCausalLM:
    """Two layers of width 16, with weights large enough that its laws are far from even."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=MAX_LENGTH,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.4,
    )
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config).eval()
    torch.random.set_rng_state(state)
    return model


def tiny_target(seed: int, *, num_slots: int = 1, **options: int) -> HFTarget:
    """`tiny_llama` as a target."""
    return HFTarget(tiny_llama(seed, **options), num_slots=num_slots)


def probe_logits(target: HFTarget, slot: int = 0) -> torch.Tensor:
    """[V] the law's logits after one more token: they differ if any cached entry does. The slot stays as it was."""
    length = target.length(slot)
    (logits,) = target.score([ScoreRequest(slot, (0,))])
    target.rewind(slot, length)
    return logits[0]


def fresh(model: LlamaForCausalLM, token_ids: Sequence[int]) -> HFTarget:
    """A target that has read `token_ids` in one go, in slot 0."""
    target = HFTarget(model, num_slots=1)
    target.prefill(0, list(token_ids))
    return target
