"""Turns what was read from a GGUF file into transformers objects, or into a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from draftproof.targets.gguf import GGUFModel


def make_config(model: GGUFModel) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(**model.config, architectures=["LlamaForCausalLM"], dtype="float32")


def make_tokenizer(model: GGUFModel) -> Any:
    """A PreTrainedTokenizerFast. It never tidies spaces in decoded text, which would lose the round trip."""
    import transformers

    build: Any = transformers.PreTrainedTokenizerFast
    return build(
        tokenizer_object=model.tokenizer,
        chat_template=model.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=model.config["max_position_embeddings"],
        **model.special_tokens,
    )


def make_generation_config(model: GGUFModel) -> Any:
    import transformers

    build: Any = transformers.GenerationConfig
    return build(
        bos_token_id=model.config["bos_token_id"],
        eos_token_id=list(model.eos_token_ids),
        pad_token_id=model.config["pad_token_id"],
    )


def write_folder(model: GGUFModel, folder: Path) -> None:
    """Write weights, configuration, generation configuration and tokenizer."""
    save_file(model.state, folder / "model.safetensors", metadata={"format": "pt"})
    make_config(model).save_pretrained(folder)
    make_generation_config(model).save_pretrained(folder)
    make_tokenizer(model).save_pretrained(folder)


def make_model(model: GGUFModel, dtype: Any) -> Any:
    """A LlamaForCausalLM with the file's weights, in `dtype`."""
    from transformers import LlamaForCausalLM

    built = LlamaForCausalLM.from_pretrained(None, config=make_config(model), state_dict=model.state, dtype=dtype)
    built.generation_config = make_generation_config(model)
    return built
