"""The byte-level BPE tokenizer that a GGUF file describes, as a `tokenizers.Tokenizer`.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) instead of spelling it out. Only rules that are
reproduced exactly are built: a text that is cut differently gets other ids, and the model reads another prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from draftproof.errors import UnsupportedModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def _gpt2() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> Any:
    """Every digit stands alone, then GPT-2's rule."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {"gpt-2": _gpt2, "smollm": _smollm}


def build_tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """`fields`: the file's metadata. Raises UnsupportedModelError for another model or pre-tokenizer."""
    model, rule = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if model != "gpt2":
        raise UnsupportedModelError(
            f"GGUF tokenizer.ggml.model is {model!r}; only 'gpt2' (byte-level BPE) is read; "
            "give the model as a transformers folder"
        )
    if rule not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"GGUF tokenizer.ggml.pre is {rule!r}; the rules that are reproduced exactly are "
            f"{', '.join(sorted(PRE_TOKENIZERS))}; give the model as a transformers folder"
        )
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[rule]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens)
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(token, special=False, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == USER_DEFINED
        ]
    )
    _add_boundaries(tokenizer, fields, tokens)
    return tokenizer


def _add_boundaries(tokenizer: Tokenizer, fields: dict[str, Any], tokens: list[str]) -> None:
    """The tokens that the file asks for at the beginning and the end of every text."""
    first = fields.get("tokenizer.ggml.bos_token_id") if fields.get("tokenizer.ggml.add_bos_token") else None
    last = fields.get("tokenizer.ggml.eos_token_id") if fields.get("tokenizer.ggml.add_eos_token") else None
    if first is None and last is None:
        return
    ends = [token for token in (first, last) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*([tokens[first]] if first is not None else []), "$A", *([tokens[last]] if last is not None else [])],
        special_tokens=[(tokens[token], int(token)) for token in ends],
    )
