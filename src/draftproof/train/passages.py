"""Passages for prompts, out of text that the target wrote, so that what it is asked to summarise is new each time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import numpy as np

from draftproof.errors import ParameterError
from draftproof.train.corpus import Corpus, Document

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_LENGTHS: Final = range(25, 260)
_LEAST: Final = 3


def read_passages(corpus: Corpus, decode: Callable[[list[int]], str], end_ids: frozenset[int]) -> list[list[str]]:
    """Runs of three sentences or more of one paragraph, from the target's last turn in each document.

    decode: token ids to text. end_ids: tokens that end a turn. Raises ParameterError if there is no such run.
    """
    found = [
        sentences
        for index in range(len(corpus))
        for paragraph in decode(_last_turn(corpus[index], end_ids)).split("\n")
        if len(sentences := _sentences(paragraph)) >= _LEAST
    ]
    if not found:
        raise ParameterError("passages", f"{len(corpus)} documents", "text with paragraphs of three sentences")
    return found


def _last_turn(document: Document, end_ids: frozenset[int]) -> list[int]:
    given = np.flatnonzero(~document.sampled)
    begin = int(given[-1]) + 1 if len(given) else 0
    return [token_id for token_id in document.token_ids[begin:].tolist() if token_id not in end_ids]


def _sentences(paragraph: str) -> list[str]:
    """The paragraph's sentences, the last one only if it is finished; none if one of them is too short or too long."""
    sentences = _SENTENCE_END.split(paragraph.strip())
    if sentences and not sentences[-1].endswith((".", "!", "?")):
        sentences.pop()
    return sentences if all(len(sentence) in _LENGTHS for sentence in sentences) else []
