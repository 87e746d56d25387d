"""From a request's structured_outputs to the cursor at its beginning: compiled once, checked before it takes a slot.

A grammar is compiled once for each vocabulary and text of it; the most recently used MAX_GRAMMARS are kept. Refused
here: a missing library or tokenizer, what a library can't compile, can't compile in time (`compiling.py`) or doesn't
enforce, a grammar whose first token the vocabulary can't spell, and parameters that contradict it. What is known only
later (a state that min_tokens leaves no token for) is a LawError of that request at that position.

A stop string ends the output where it appears, a stop id with a text where the grammar allows it: the output is then
the beginning of a text of the grammar. A stop id without text ends it as EOS does, where the grammar may end.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Final

import numpy as np

from draftproof.errors import GrammarError, ParameterError
from draftproof.grammar.backend import Backend, Compiled, make_backend, read_fast_tokenizer
from draftproof.grammar.compiling import SECONDS, Compilations
from draftproof.grammar.cursor import GrammarCursor, Rules
from draftproof.grammar.marker import Marker
from draftproof.grammar.vocabulary import Vocabulary, vocabulary_of
from draftproof.params import SamplingParams
from draftproof.sampling import RowParams
from draftproof.structured import StructuredOutputsParams

MAX_GRAMMARS: Final = 128


class Grammars:
    """The compiled grammars of one engine.

    tokenizer, vocab_size, eos_token_ids: the model's. max_grammars: how many are kept, the least recently used goes
    first. compile_seconds: how long a request waits for its grammar. num_compiled counts compilations.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        *,
        max_grammars: int = MAX_GRAMMARS,
        compile_seconds: float = SECONDS,
    ) -> None:
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, tuple(eos_token_ids)
        self._vocabularies: dict[str, Vocabulary] = {}
        self._backends: dict[str, Backend] = {}
        self._kept: OrderedDict[StructuredOutputsParams, Compiled] = OrderedDict()
        self._markers: OrderedDict[tuple[str, str | Sequence[int]], Marker] = OrderedDict()
        self._max_grammars = max_grammars
        self._lock = Lock()
        self._compilations = Compilations(self._keep, seconds=compile_seconds)
        self.num_compiled = 0

    def __len__(self) -> int:
        return len(self._kept)

    def cursor(self, params: SamplingParams, row_params: RowParams) -> GrammarCursor | None:
        """The cursor at the request's beginning, a new one at each call; None without structured_outputs.

        Raises GrammarError, ParameterError or MissingExtraError.
        """
        given = params.structured_outputs
        if given is None:
            return None
        with self._lock:
            vocabulary = self._vocabulary(given.backend)
            ending_ids = {*self._eos_ids, *vocabulary.without_text(params.stop_token_ids)}
            if not ending_ids:
                raise GrammarError("the model has no EOS token to end a grammar with; give a special stop_token_ids")
            marker = self._marker(given, vocabulary, ending_ids)
        rules = Rules(self._compiled(given, vocabulary), vocabulary, ending_ids, marker)
        _check_first_row(rules.grammar_beginning(), row_params, marked=marker is not None)
        if marker is None:
            _check_length(given, vocabulary, params.min_tokens)
        return rules.beginning()

    def _vocabulary(self, backend: str) -> Vocabulary:
        if backend not in self._vocabularies:
            self._vocabularies[backend] = vocabulary_of(
                self._tokenizer,
                self._vocab_size,
                self._eos_ids,
                lambda tokenizer, size: read_fast_tokenizer(backend, tokenizer, size),
            )
        return self._vocabularies[backend]

    def _compiled(self, given: StructuredOutputsParams, vocabulary: Vocabulary) -> Compiled:
        key = replace(given, start_after=None)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            if given.backend not in self._backends:
                self._backends[given.backend] = make_backend(given.backend, vocabulary)
            backend = self._backends[given.backend]
        return self._compilations.result(key, backend.compile, vocabulary.size)

    def _keep(self, key: StructuredOutputsParams, compiled: Compiled) -> None:
        with self._lock:
            self._kept[key] = compiled
            self.num_compiled += 1
            if len(self._kept) > self._max_grammars:
                self._kept.popitem(last=False)

    def _marker(
        self, given: StructuredOutputsParams, vocabulary: Vocabulary, ending_ids: set[int]
    ) -> Marker | None:  # fmt: skip
        if given.start_after is None:
            return None
        key = (given.backend, given.start_after)
        if key not in self._markers:
            self._markers[key] = Marker(given.start_after, vocabulary)
            if len(self._markers) > self._max_grammars:
                self._markers.popitem(last=False)
        if not isinstance(given.start_after, str) and ending_ids & set(given.start_after):
            raise ParameterError("start_after", given.start_after, "free of the tokens that end the output")
        return self._markers[key]


def _check_first_row(cursor: GrammarCursor, row: RowParams, *, marked: bool) -> None:
    """Raises GrammarError for a first row without a token, for the grammar's sake or together with other masks."""
    mask = cursor.mask
    if mask is None or not mask.any():
        raise GrammarError(
            "no token of the vocabulary can begin a text of the grammar; it may have no text at all, or characters "
            "that no token spells"
        )
    left = mask.copy()
    if row.allowed_ids is not None:
        left &= np.isin(np.arange(len(left)), row.allowed_ids)
    left[row.banned_ids] = False
    left[row.bias_ids[row.biases == -np.inf]] = False
    if row.min_tokens > 0 and not marked:
        left[row.ending_ids] = False
    if not left.any():
        raise GrammarError(
            f"the grammar allows {int(mask.sum())} tokens at its beginning, and allowed_token_ids, bad_words, "
            "logit_bias or min_tokens none of them; allow more tokens, or change the grammar"
        )


def _check_length(given: StructuredOutputsParams, vocabulary: Vocabulary, min_tokens: int) -> None:
    """Raises ParameterError for min_tokens that no choice can be spelled in."""
    if given.choice is None or min_tokens == 0:
        return
    most = max(_most_tokens(text.encode(), vocabulary) for text in given.choice)
    if min_tokens > most:
        raise ParameterError(
            "min_tokens", min_tokens, f"at most {most}, the tokens of the longest choice", "or add a longer choice"
        )


def _most_tokens(text: bytes, vocabulary: Vocabulary) -> int:
    """The most tokens that spell `text`; -1 if none do."""
    known = {own for own in vocabulary.token_bytes if own and own in text}
    best = [0] + [-1] * len(text)
    for end in range(1, len(text) + 1):
        reached = [best[end - len(own)] + 1 for own in known if text[:end].endswith(own) and best[end - len(own)] >= 0]
        best[end] = max(reached, default=-1)
    return best[-1]
