"""What is asked of a grammar library, and where ours come from: xgrammar and llguidance, from the extra `structured`.

A library compiles a grammar for a vocabulary and makes matchers, each a mutable parser with rollback. Nothing outside
`cursor.py` touches a matcher: cursors are what the engine sees, and they never change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import MissingExtraError, ParameterError
from draftproof.grammar.vocabulary import Vocabulary
from draftproof.structured import BACKENDS, StructuredOutputsParams

Bits: TypeAlias = NDArray[np.int32]
"""[1, ceil(V / 32)] a bit for each token id, the lowest id in the lowest bit."""
INSTALL: Final = "pip install 'draftproof[structured]'"


class Matcher(ABC):
    """A parser at one point of one text."""

    __slots__ = ()

    @abstractmethod
    def accept(self, token_id: int) -> bool:
        """Move past a token that `fill` allows; False if the library refuses it all the same."""

    @abstractmethod
    def rollback(self, num_tokens: int) -> None:
        """Take the last `num_tokens` accepted tokens back."""

    @abstractmethod
    def fill(self, bits: Bits) -> None:
        """Set the bits of the tokens that may come next; those of ids without text mean nothing."""

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether the tokens so far are a whole text of the grammar."""


class Compiled(ABC):
    """A grammar that is compiled for a vocabulary. Immutable, shared by requests."""

    __slots__ = ()

    @abstractmethod
    def matcher(self) -> Matcher:
        """A matcher at the grammar's beginning."""


class Backend(ABC):
    """A grammar library over one vocabulary."""

    @abstractmethod
    def compile(self, params: StructuredOutputsParams) -> Compiled:
        """Compiles the grammar. Raises GrammarError with what the library says."""


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """The library `name` over a vocabulary. Raises MissingExtraError where it is not installed."""
    if name == "llguidance":
        from draftproof.grammar.llguidance_backend import LlguidanceBackend

        return LlguidanceBackend(vocabulary)
    from draftproof.grammar.xgrammar_backend import XgrammarBackend

    return XgrammarBackend(vocabulary)


def read_fast_tokenizer(name: str, tokenizer: Any, vocab_size: int) -> Sequence[bytes]:
    """[V] bytes of a fast tokenizer's ids, special tokens' texts included, as the library `name` reads them."""
    if name not in BACKENDS:
        raise ParameterError("backend", name, f"one of {', '.join(BACKENDS)}")
    if name == "llguidance":
        from draftproof.grammar import llguidance_backend

        return llguidance_backend.read_fast_tokenizer(tokenizer, vocab_size)
    from draftproof.grammar import xgrammar_backend

    return xgrammar_backend.read_fast_tokenizer(tokenizer, vocab_size)


def missing(package: str) -> MissingExtraError:
    """The error for a library that is not installed."""
    return MissingExtraError("structured_outputs", package, INSTALL)
