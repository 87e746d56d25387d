"""llguidance: JSON schemas, JSON objects, regexes, GBNF and Lark grammars, choices.

It refuses what it doesn't implement of JSON Schema, and combines keywords that xgrammar doesn't (allOf, siblings of
$ref and anyOf). Where the grammar leaves no choice of text, it allows the tokenizer's own spelling alone, so that such
spans have one allowed token at each position.
Source: llguidance's documentation (guidance-ai). Deviations: undeclared properties are left out, as with xgrammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from draftproof.errors import GrammarError
from draftproof.grammar import json_schema
from draftproof.grammar.backend import Backend, Bits, Compiled, Matcher, missing
from draftproof.grammar.vocabulary import Vocabulary
from draftproof.structured import StructuredOutputsParams

try:
    import llguidance
    from llguidance import gbnf_to_lark
    from llguidance.hf import from_tokenizer
    from llguidance.numpy import fill_next_token_bitmask
except ImportError as error:
    raise missing("llguidance") from error

_ONE_LINE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""xgrammar's separators, which are json.dumps's."""


@final
class LlguidanceMatcher(Matcher):
    """An llguidance parser.

    One that meets a dead end, or a limit of its own, can't be used again: it is made anew from the accepted tokens.
    """

    __slots__ = ("_accepted", "_first", "_matcher")

    def __init__(self, first: llguidance.LLMatcher) -> None:
        self._first, self._accepted = first, list[int]()
        self._matcher = first.deep_copy()

    def accept(self, token_id: int) -> bool:
        self._accepted.append(token_id)
        return bool(self._matcher.consume_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        del self._accepted[len(self._accepted) - num_tokens :]
        if not self._matcher.rollback(num_tokens) or self._matcher.is_error():
            self._start_again()

    def fill(self, bits: Bits) -> None:
        fill_next_token_bitmask(self._matcher, bits)
        if self._matcher.is_error():
            bits[:] = 0
            self._start_again()

    def is_complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def _start_again(self) -> None:
        self._matcher = self._first.deep_copy()
        if self._accepted and not self._matcher.consume_tokens(self._accepted):
            raise GrammarError(f"llguidance gave the grammar up: {_first_line(self._matcher.get_error())}")


@final
class LlguidanceCompiled(Compiled):
    """A parser at the beginning, to be copied."""

    __slots__ = ("_first",)

    def __init__(self, first: llguidance.LLMatcher) -> None:
        self._first = first

    def matcher(self) -> LlguidanceMatcher:
        return LlguidanceMatcher(self._first)


@final
class LlguidanceBackend(Backend):
    """llguidance over one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        eos_ids = list(vocabulary.eos_token_ids) or None
        if hasattr(vocabulary.tokenizer, "token_bytes"):
            wrapped = llguidance.TokenizerWrapper(_Spelled(vocabulary))
            self._tokenizer = llguidance.LLTokenizer(wrapped, n_vocab=vocabulary.size, eos_token=eos_ids)
        else:
            self._tokenizer = from_tokenizer(vocabulary.tokenizer, n_vocab=vocabulary.size, eos_token=eos_ids)

    def compile(self, params: StructuredOutputsParams) -> LlguidanceCompiled:
        try:
            source = _source(params)
        except (ValueError, RuntimeError) as error:
            raise GrammarError(f"llguidance can't read the grammar: {error}") from error
        first = llguidance.LLMatcher(self._tokenizer, source, log_level=0)
        if first.is_error():
            raise GrammarError(f"llguidance can't compile the grammar: {first.get_error().strip()}")
        return LlguidanceCompiled(first)


def _first_line(error: str) -> str:
    """What went wrong; the state of the parser, many lines of it, follows."""
    return error.partition("\n")[0].strip()


class _Spelled:
    """A tokenizer in llguidance's terms, from a vocabulary of bytes: text is spelled with the longest tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else None
        self.bos_token_id = None
        self.special_token_ids = [token_id for token_id in range(vocabulary.size) if not vocabulary.has_text[token_id]]
        # A special token's bytes begin with 0xff, which no text has.
        self.tokens = [text or b"\xff%d" % token_id for token_id, text in enumerate(vocabulary.token_bytes)]
        self._ids: Mapping[bytes, int] = {text: i for i, text in enumerate(vocabulary.token_bytes) if text}
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str | bytes) -> list[int]:
        left = text if isinstance(text, bytes) else text.encode()
        found: list[int] = []
        while left:
            for length in range(min(self._longest, len(left)), 0, -1):
                if left[:length] in self._ids:
                    break
            else:
                raise GrammarError(f"the vocabulary has no token for the byte {left[:1]!r}")
            found.append(self._ids[left[:length]])
            left = left[length:]
        return found


def read_fast_tokenizer(tokenizer: Any, vocab_size: int) -> Sequence[bytes]:
    """See `backend.read_fast_tokenizer`."""
    read = from_tokenizer(tokenizer, n_vocab=max(vocab_size, len(tokenizer)))
    return [read.decode_bytes([token_id]) for token_id in range(min(vocab_size, len(tokenizer)))]


def _source(params: StructuredOutputsParams) -> str:
    if params.json is not None:
        schema = json.loads(str(params.json))
        json_schema.refuse_unknown_keywords(schema)
        schema = json_schema.with_formats_written_out(json_schema.closed(schema), together=True)
        return _of_schema(schema, params)
    if params.json_object:
        return _of_schema(json.loads(json_schema.ANY_OBJECT), params)
    if params.regex is not None:
        return str(llguidance.LLMatcher.grammar_from_regex(params.regex))
    if params.choice is not None:
        literals = " | ".join(json.dumps(text, ensure_ascii=False) for text in params.choice)
        return str(llguidance.LLMatcher.grammar_from_lark(f"start: {literals}"))
    grammar = str(params.grammar)
    return str(llguidance.LLMatcher.grammar_from_lark(gbnf_to_lark.any_to_lark(grammar)))


def _of_schema(schema: Any, params: StructuredOutputsParams) -> str:
    options: dict[str, Any] = dict(_ONE_LINE) if params.disable_any_whitespace else {}
    if params.whitespace_pattern is not None:
        options["whitespace_pattern"] = params.whitespace_pattern
    text = json.dumps(schema)
    return str(llguidance.LLMatcher.grammar_from_json_schema(text, overrides=options))  # type: ignore[arg-type]
