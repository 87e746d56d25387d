"""Writes small GGUF files of the llama architecture, laid out as llama.cpp's converter does."""

from pathlib import Path
from typing import Any

import gguf
import torch

from draftproof.targets.gguf import BLOCK_NAMES, TOP_NAMES

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789Ġ.,'!"
TOKENS = ["<|end|>", "<tool>", *LETTERS, "th", "the", "12", "Ġt"]
MERGES = ["t h", "th e", "1 2", "Ġ t"]
KINDS = [3, 4] + [1] * (len(TOKENS) - 2)
HEADS, KV_HEADS, HIDDEN, INNER, LAYERS = 4, 2, 32, 64, 2


def pairs_interleaved(weights: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Row j of a head's first half and row j of its second half become rows 2j and 2j + 1."""
    out = torch.empty_like(weights)
    size = weights.shape[0] // num_heads
    for head in range(num_heads):
        for pair in range(size // 2):
            out[head * size + 2 * pair] = weights[head * size + pair]
            out[head * size + 2 * pair + 1] = weights[head * size + size // 2 + pair]
    return out


def model_state(tied: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    head_dim = HIDDEN // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * head_dim, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * head_dim, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
    }
    state = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        state["lm_head.weight"] = (len(TOKENS), HIDDEN)
    for layer in range(LAYERS):
        state |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in shapes.items()}
    return {name: torch.randn(shape, generator=generator) for name, shape in state.items()}


def write_gguf(path: Path, state: dict[str, torch.Tensor], drop: str = "", **changes: Any) -> Path:
    """`changes` replace fields by name, dots written as double underscores; `drop` leaves one tensor out."""
    fields: dict[str, Any] = {
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.rope.freq_base": 5000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    } | {name.replace("__", "."): value for name, value in changes.items()}
    writer = gguf.GGUFWriter(path, fields.pop("general.architecture", "llama"))
    for name, value in fields.items():
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_string(name, value)
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_merges(MERGES)
    names = {ours: theirs for theirs, ours in TOP_NAMES.items()}
    for layer in range(LAYERS):
        names |= {
            f"model.layers.{layer}.{ours}.weight": f"blk.{layer}.{theirs}.weight"
            for theirs, ours in BLOCK_NAMES.items()
        }
    for name, weights in state.items():
        if names.get(name, name) == drop:
            continue
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            weights = pairs_interleaved(weights, HEADS if "q_proj" in name else KV_HEADS)
        writer.add_tensor(names.get(name, name), weights.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
