"""Reads a GGUF file of the llama architecture: configuration, float32 weights, tokenizer, chat template.

GGUF stores quantised tensors under llama.cpp's names, with the rotary pairs of query and key rows interleaved
(0, 1, 2, 3, …) where transformers keeps the halves apart (0, 2, …, 1, 3, …). Everything else is a renaming. What
the file can say and this reader can't honour exactly is refused by name.

Source: the GGUF specification (ggml repository, docs/gguf.md) and the field names of the `gguf` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer

from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.gguf_tokenizer import build_tokenizer

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """A model in transformers' terms.

    config: arguments of `transformers.LlamaConfig`. state: float32 tensors by transformers' names; without
    `lm_head.weight` where it is tied to the embedding. eos_token_ids: the tokens that end a text.
    """

    config: dict[str, Any]
    state: dict[str, torch.Tensor]
    tokenizer: Tokenizer
    chat_template: str | None
    eos_token_ids: tuple[int, ...]
    special_tokens: dict[str, str]


def read_gguf(path: str | Path) -> GGUFModel:
    """Raises ModelError (unreadable), UnsupportedModelError (not exactly expressible)."""
    try:
        reader = GGUFReader(str(path))
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, IndexError, KeyError) as error:
        raise ModelError(f"{path} can't be read as a GGUF file: {error}") from error
    state = _read_weights(reader.tensors, fields, path)
    config = _config(fields, tied="lm_head.weight" not in state, biased=any("q_proj.bias" in name for name in state))
    _check_state(state, config, path)
    tokens = fields.get("tokenizer.ggml.tokens", [])
    special = {
        name: tokens[fields[f"tokenizer.ggml.{key}"]]
        for name, key in (
            ("bos_token", "bos_token_id"),
            ("eos_token", "eos_token_id"),
            ("unk_token", "unknown_token_id"),
            ("pad_token", "padding_token_id"),
        )
        if f"tokenizer.ggml.{key}" in fields
    }
    eos = [fields[key] for key in ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id") if key in fields]
    return GGUFModel(
        config=config,
        state=state,
        tokenizer=build_tokenizer(fields),
        chat_template=fields.get("tokenizer.chat_template"),
        eos_token_ids=tuple(dict.fromkeys(int(token) for token in eos)),
        special_tokens=special,
    )


def _config(fields: dict[str, Any], *, tied: bool, biased: bool) -> dict[str, Any]:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r}: only 'llama' is read; give the model as a transformers folder"
        )
    if fields.get("llama.expert_count", 0):
        raise UnsupportedModelError("GGUF llama with experts is not read; give the model as a transformers folder")
    scaling = fields.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "llama.rope.scale_linear" in fields:
        raise UnsupportedModelError(
            f"GGUF rotary scaling {scaling!r} is not read; give the model as a transformers folder"
        )
    heads = int(fields["llama.attention.head_count"])
    hidden = int(fields["llama.embedding_length"])
    head_dim = int(fields.get("llama.attention.key_length", hidden // heads))
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if int(fields.get(key, head_dim)) != head_dim:
            raise UnsupportedModelError(f"GGUF {key} is {fields[key]}; only the head size {head_dim} is read")
    theta = float(fields.get("llama.rope.freq_base", 10000.0))
    return {
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(fields["llama.context_length"]),
        "rms_norm_eps": float(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "attention_bias": biased,
        "tie_word_embeddings": tied,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }


def _read_weights(tensors: list[Any], fields: dict[str, Any], path: str | Path) -> dict[str, torch.Tensor]:
    if fields.get("general.architecture") != "llama":
        return {}
    heads = int(fields["llama.attention.head_count"])
    kv_heads = int(fields.get("llama.attention.head_count_kv", heads))
    state: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        weights = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float().reshape(shape)
        if tensor.name in TOP_NAMES:
            state[TOP_NAMES[tensor.name]] = weights
            continue
        parts = tensor.name.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in BLOCK_NAMES or parts[3] not in ("weight", "bias"):
            raise UnsupportedModelError(
                f"{path} holds the tensor {tensor.name!r}, which a plain llama model doesn't have"
            )
        if parts[2] in ("attn_q", "attn_k"):
            weights = _halves_apart(weights, heads if parts[2] == "attn_q" else kv_heads)
        state[f"model.layers.{parts[1]}.{BLOCK_NAMES[parts[2]]}.{parts[3]}"] = weights
    return state


def _halves_apart(weights: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows (0, 1, 2, 3, …) of each head, stored as rotary pairs, to (0, 2, …, 1, 3, …)."""
    pairs = weights.reshape(num_heads, weights.shape[0] // num_heads // 2, 2, *weights.shape[1:])
    return pairs.transpose(1, 2).reshape(weights.shape).contiguous()


def _check_state(state: dict[str, torch.Tensor], config: dict[str, Any], path: str | Path) -> None:
    """Every tensor that the configuration asks for is there, and no other."""
    kinds = ["q", "k", "v", "o"] if config["attention_bias"] else []
    expected = set(TOP_NAMES.values()) - ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    for layer in range(config["num_hidden_layers"]):
        expected |= {f"model.layers.{layer}.{name}.weight" for name in BLOCK_NAMES.values()}
        expected |= {f"model.layers.{layer}.self_attn.{kind}_proj.bias" for kind in kinds}
    wrong = sorted(expected ^ set(state))
    if wrong:
        raise ModelError(f"{path} is no complete llama model: missing or unexpected {', '.join(wrong[:4])}")
