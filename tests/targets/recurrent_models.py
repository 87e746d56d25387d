"""Tiny random models with recurrent layers, one of each kind that transformers has."""

from typing import Any

import torch
import transformers

from tests.targets.models import COMMON, VOCAB_SIZE

BASE: dict[str, Any] = COMMON | {"num_hidden_layers": 4}
DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA2: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 8}
# Products of experts in float32 sum in an order that depends on their number of tokens: `invariant` refuses them.
EXPERTS_TOO = "qwen3_next_moe"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3Next", BASE | DELTA | EXPERTS | {"mlp_only_layers": [0, 1, 2, 3]}),
    EXPERTS_TOO: ("Qwen3Next", BASE | DELTA | EXPERTS),
    "qwen3_5": ("Qwen3_5Text", BASE | DELTA),
    "mamba2": (
        "Mamba2",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 8,
            "n_groups": 2, "state_size": 8, "chunk_size": 4, "time_step_limit": (0.01, 0.7),
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        },
    ),
    "lfm2": (
        "Lfm2",
        BASE | {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_auto_adjust_ff_dim": False},
    ),
    "falcon_h1": ("FalconH1", BASE | MAMBA2 | {"mamba_d_ssm": 64, "mamba_chunk_size": 4}),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        BASE
        | MAMBA2
        | {"layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 0, "mamba_chunk_size": 4,
           "shared_intermediate_size": 32, "position_embedding_type": "rope"},
    ),
    "bamba": ("Bamba", BASE | MAMBA2 | {"attn_layer_indices": [1], "mamba_chunk_size": 4}),
    "jamba": (
        "Jamba",
        BASE
        | {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "mamba_d_state": 8, "mamba_dt_rank": 4},
    ),
    "falcon_mamba": (
        "FalconMamba",
        {
            "vocab_size": VOCAB_SIZE, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "time_step_rank": 4,
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        },
    ),
}  # fmt: skip
ARCHITECTURES = tuple(SETTINGS)
CAUSAL = {"Qwen3_5Text": "Qwen3_5ForCausalLM"}


def recurrent_model(
    name: str, dtype: torch.dtype = torch.float32, seed: int = 7, scale: float = 0.3, **changes: Any
) -> Any:
    """A model whose weights depend on `seed` alone. scale: of their matrices; at 0.3 layers amplify a difference in
    their inputs, at 0.1 they don't."""
    prefix, settings = SETTINGS[name]
    config = getattr(transformers, f"{prefix}Config")(**(settings | changes))
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        model = getattr(transformers, CAUSAL.get(prefix, f"{prefix}ForCausalLM"))(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, scale)
    return model.eval().to(dtype)
