"""A tokenizer of fixed texts for tests: token i is `texts[i]`; `specials` are left out of decoded text."""

from __future__ import annotations


class Letters:
    def __init__(self, texts, specials=()):
        self.texts, self.specials = list(texts), set(specials)
        self.chat_template = None

    def decode(self, token_ids, *, skip_special_tokens=True):
        return "".join(self.texts[i] for i in token_ids if not (skip_special_tokens and i in self.specials))

    def __call__(self, text, add_special_tokens=True):
        ids, at = [], 0
        while at < len(text):
            found = max(
                (i for i, t in enumerate(self.texts) if t and text.startswith(t, at)), key=lambda i: len(self.texts[i])
            )
            ids.append(found)
            at += len(self.texts[found])
        return {"input_ids": ids}

    def encode(self, text, add_special_tokens=True):
        return self(text)["input_ids"]


class Utf8Bytes:
    """Token i is byte i: every character beyond ASCII spans tokens."""

    chat_template = None

    def decode(self, token_ids, *, skip_special_tokens=True):
        return bytes(token_ids).decode("utf-8", errors="replace")
