"""Which models can be decoded exactly, and the errors that say why one can't."""

from __future__ import annotations

from typing import Any

import torch

from draftproof.errors import ModelError, ParameterError, UnsupportedModelError

PLAIN_LAYER_TYPES = ("full_attention", "sliding_attention")
RECURRENT_LAYER_TYPES = (
    "linear_attention",
    "conv",
    "hybrid",
    "hybrid_sliding",
    "mamba",
    "mamba2",
    "attention",
    "moe",
    "mlp",
    "dummy",
)


def check_config(full: Any) -> None:
    """Raises UnsupportedModelError for a configuration whose cache or attention can't be rewound exactly."""
    config = full.get_text_config(decoder=True)
    name = f"a {full.model_type!r} model"
    if full.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} is an encoder and a decoder; give a decoder-only causal language model")
    types = getattr(config, "layer_types", None) or []
    wrong = sorted({str(kind) for kind in types} - set(PLAIN_LAYER_TYPES) - set(RECURRENT_LAYER_TYPES))
    if wrong:
        raise UnsupportedModelError(
            f"{name} has layers of type {', '.join(wrong)}, whose state can't be rewound exactly; "
            f"supported layer types: {', '.join(PLAIN_LAYER_TYPES)}"
        )
    if getattr(config, "attention_chunk_size", None) is not None:
        raise UnsupportedModelError(f"{name} uses chunked attention, which is not supported")
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", None):
        raise UnsupportedModelError(f"{name} attends in both directions; give a causal language model")


def check_architecture(model: Any) -> None:
    """`check_config`, and what only the model itself shows."""
    check_config(model.config)
    name = type(model).__name__
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or torch.device("meta") in devices:
        raise UnsupportedModelError(
            f"{name} has parameters on {', '.join(sorted(map(str, devices)))}; load it whole on one device"
        )


def num_shards(model: Any) -> int:
    """Over how many processes transformers has cut the model's layers (`parallel.py`)."""
    return int(getattr(model, "tp_size", None) or 1)


def check_weights(model: Any) -> None:
    """Raises ModelError naming the first tensor that holds NaN or infinity."""
    for name, parameter in model.named_parameters():
        # Of a model that is cut over processes, this one's part.
        tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if tensor.is_floating_point() and tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise ModelError(f"the weights are damaged: {name} holds NaN or infinite values; get the model anew")


def vocabulary_size(model: Any) -> int:
    """Number of logits per row; the embedding must have as many entries."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    size, entries = int(head.out_features), int(table.num_embeddings)
    if size != entries:
        raise UnsupportedModelError(
            f"{type(model).__name__} has {entries} input embeddings and {size} logits; they must be equal in number"
        )
    return size


def model_length(config: Any, asked: int | None) -> int:
    """The most tokens a sequence may have: `asked`, or what the model was configured for.

    Raises ParameterError where `asked` is more than that, and UnsupportedModelError where the rotary frequencies
    depend on the longest sequence of the batch, so that a token's law would depend on what comes later.
    """
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    if limit is None and asked is None:
        raise ParameterError("max_model_len", None, "given, since the model's configuration has no length")
    if asked is not None and (asked < 1 or (limit is not None and asked > limit)):
        raise ParameterError("max_model_len", asked, "at least 1" + (f" and at most {limit}" if limit else ""))
    length = int(limit or 0) if asked is None else asked
    for rope in _rope_settings(text):
        kind, original = rope.get("rope_type"), rope.get("original_max_position_embeddings")
        original = original or getattr(text, "original_max_position_embeddings", None)
        if kind == "longrope" and original and length > original:
            raise UnsupportedModelError(
                f"the model's rotary frequencies change for all tokens when the sequence passes {original} tokens, so "
                f"cached keys would be wrong; pass max_model_len={original} or less"
            )
    return length


def _rope_settings(config: Any) -> list[dict[str, Any]]:
    """Rotary settings: one dictionary, or one per layer type."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in settings.values() if isinstance(value, dict)]
    return nested or [settings]
