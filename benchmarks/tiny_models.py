"""A tiny Llama and a drafter for it, as folders that transformers and vLLM read and as GGUF files for llama.cpp.

    python -m benchmarks.tiny_models OUT_FOLDER

Random weights, float32, 2 layers, width 128, 64 tokens; the drafter is the target less its last layer. Texts of tokens
have no meaning: engines are asked with ids. Writes target/, draft/, target.gguf, draft.gguf.
"""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 64
EOS = 0
NUM_POSITIONS = 512
PROMPTS = [[1 + (7 * i + 3 * j) % (VOCAB_SIZE - 1) for j in range(4 + i % 3)] for i in range(8)]
_ROLES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def target_model() -> Any:
    """Laws that are neither flat nor certain."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=NUM_POSITIONS, initializer_range=0.12, bos_token_id=None,
        eos_token_id=EOS, pad_token_id=EOS, tie_word_embeddings=False,
    )  # fmt: skip
    torch.default_generator.manual_seed(1)
    return LlamaForCausalLM(config).to(torch.float32).eval()


def without_last_layer(target: Any) -> Any:
    """The target less its last layer, sharing nothing with it."""
    pruned = copy.deepcopy(target)
    del pruned.model.layers[-1]
    pruned.config.num_hidden_layers -= 1
    if getattr(pruned.config, "layer_types", None):
        pruned.config.layer_types = pruned.config.layer_types[:-1]
    return pruned


def words() -> list[str]:
    return ["</s>", *(f"w{index} " for index in range(1, VOCAB_SIZE))]


def save_folder(model: Any, folder: Path) -> None:
    model.save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate(words())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="</s>"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", unk_token="</s>").save_pretrained(folder)


def save_gguf(model: Any, path: Path) -> None:
    """llama.cpp's layout: heads of q and k have their rotary halves interleaved."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(NUM_POSITIONS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words())
    writer.add_token_scores([-float(index) for index in range(VOCAB_SIZE)])
    kinds = [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (VOCAB_SIZE - 1)]
    writer.add_token_types(kinds)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        role, values = _role(name), tensor.numpy()
        if (part := role.split(".")[-2]) in heads:
            rows = values.reshape(heads[part], 2, -1, values.shape[-1])
            values = np.ascontiguousarray(rows.swapaxes(1, 2)).reshape(values.shape)
        writer.add_tensor(role, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _role(name: str) -> str:
    """llama.cpp's name of a tensor."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_ROLES[rest.removesuffix('.weight')]}.weight"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    folder = Path(parser.parse_args().out)
    folder.mkdir(parents=True, exist_ok=True)
    target = target_model()
    for name, model in (("target", target), ("draft", without_last_layer(target))):
        save_folder(model, folder / name)
        save_gguf(model, folder / f"{name}.gguf")


if __name__ == "__main__":
    main()
