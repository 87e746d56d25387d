"""A tokenizer of bytes and a few longer tokens for tests, and engines over tables with it."""

from __future__ import annotations

import zlib

import numpy as np

from draftproof import LLM, SamplingParams
from draftproof.core import Dense
from draftproof.targets.toy import TableTarget

EOS = 0
SPECIAL = 1
MERGED = (b"ab", b'": ', b"12", b'{"', b'"a', b"na", b"name", b"true", b"\n\n", b"]}", "é".encode())


class ByteTokenizer:
    """Ids 0 and 1 are special (EOS and `<think>`), 2 to 257 the bytes, then MERGED; `num_padded` ids write nothing."""

    chat_template = None
    all_special_ids = (EOS, SPECIAL)

    def __init__(self, merged=MERGED, num_padded=3):
        self.token_bytes = [b"<eos>", b"<think>", *(bytes([byte]) for byte in range(256)), *merged]
        self.vocab_size = len(self.token_bytes) + num_padded

    def ids(self, text):
        """One id for each byte."""
        return [2 + byte for byte in (text if isinstance(text, bytes) else text.encode())]

    def id(self, text):
        """The id of one token."""
        return self.token_bytes.index(text)

    def decode(self, token_ids, *, skip_special_tokens=True):
        kept = [i for i in token_ids if not (skip_special_tokens and i in self.all_special_ids)]
        return b"".join(self.token_bytes[i] for i in kept if i < len(self.token_bytes)).decode(
            "utf-8", errors="replace"
        )

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": self.ids(text)}


class SmallTokenizer(ByteTokenizer):
    """A vocabulary of a dozen tokens, where laws can be enumerated: EOS, then the given texts."""

    all_special_ids = (EOS,)

    def __init__(self, texts, num_padded=0):
        self.token_bytes = [b"", *texts]
        self.vocab_size = len(self.token_bytes) + num_padded

    def ids(self, text):
        return [self.token_bytes.index(text[i : i + 1].encode()) for i in range(len(text))]


class QuickTable:
    """Random laws that depend on the last two tokens; EOS and what closes JSON are likely, so that texts end.

    The part of `verify.tables.Table` that targets and drafters read, in floats: 270 Fractions a row are slow.
    """

    def __init__(self, tokenizer, seed=0, boost=3.0):
        self.vocab_size, self.seed, self.boost = tokenizer.vocab_size, seed, boost
        closing = (b'"', b"}", b"]", b",", b": ")
        self._likely = [EOS, *(i for i, text in enumerate(tokenizer.token_bytes) if text in closing)]
        self._spaces = [i for i, text in enumerate(tokenizer.token_bytes) if text and text.isspace()]
        self._rows = {}

    def probs(self, context):
        key = tuple(context[-2:])
        if key not in self._rows:
            source = np.random.default_rng(zlib.crc32(repr((self.seed, key)).encode()))
            logits = source.standard_normal(self.vocab_size)
            logits[self._likely] += self.boost
            logits[self._spaces] -= 2 * self.boost
            weights = np.exp(logits)
            self._rows[key] = (weights / weights.sum()).tolist()
        return self._rows[key]

    def law(self, context):
        return Dense(np.array(self.probs(context)))


def engine(tokenizer, *, seed=0, boost=3.0, num_slots=4, drafter=None, law=None, **speculative):
    """An LLM over a table as wide as the tokenizer; without keywords it decodes plainly."""
    target = TableTarget(law or QuickTable(tokenizer, seed, boost), num_slots=num_slots, eos_token_ids=[EOS])
    config = {"prompt_lookup_min": 1, "draft_length": "fixed", **speculative} if speculative or drafter else None
    if config is not None:
        config = {"num_speculative_tokens": 5, "method": "ngram", **config}
    return LLM.from_target(target, tokenizer, speculative_config=config, drafter=drafter)


def asking(structured, **kw):
    """SamplingParams with a grammar."""
    return SamplingParams(**{"max_tokens": 40, "structured_outputs": structured, **kw})


def ids(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def texts(outputs):
    return [output.outputs[0].text for output in outputs]
