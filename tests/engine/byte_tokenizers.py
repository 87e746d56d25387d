"""Tokenizers for tests of detokenization, built with the tokenizers library: byte-level BPE, and metaspace pieces
with byte fallback as sentencepiece models have them."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIALS = ["<s>", "</s>"]


@cache
def byte_level():
    """Every byte, and pieces that end inside a character or begin in one: é is C3 A9, 叫 E5 8F AB, 🙂 F0 9F 99 82."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    letter = byte_letters()
    for piece in (b" the", b"ab", b"\xc3\xa9", b"\xe5\x8f", b"\xab\xe5", b"\x8f\xab", b"a\xe5", b"\x82 ", b"\xf0\x9f"):
        vocab["".join(letter[byte] for byte in piece)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return _fast(tokenizer)


def byte_letters():
    """byte -> the letter that byte-level tokenizers write for it (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {
        **{byte: chr(byte) for byte in plain},
        **{byte: chr(256 + place) for place, byte in enumerate(others)},
    }


@cache
def metaspace():
    """Pieces such as ▁the, and <0x00> … <0xFF> for bytes, as Llama 2's."""
    pieces = ["<unk>", "▁the", "▁", "a", "b", "▁a", "é", "▁ab", "!", "叫"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    vocab |= {f"<0x{byte:02X}>": len(pieces) + byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    return _fast(tokenizer)


def _fast(tokenizer):
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )


class Counting:
    """Counts the ids that are decoded."""

    def __init__(self, tokenizer):
        self.tokenizer, self.num_decoded = tokenizer, 0

    def decode(self, token_ids, **options):
        self.num_decoded += len(token_ids)
        return self.tokenizer.decode(list(token_ids), **options)
