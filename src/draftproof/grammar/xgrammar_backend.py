"""xgrammar: JSON schemas, JSON objects, regexes, GBNF and Lark grammars, choices, structural tags.

JSON schemas are looked through by `json_schema.check` first: what xgrammar would leave out in silence is refused.
Source: XGrammar, Dong et al. 2411.15100; the package's own documentation. Deviations: special tokens have no text (see
`vocabulary.py`), but for those that a structural tag names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from draftproof.errors import GrammarError
from draftproof.grammar import json_schema
from draftproof.grammar.backend import Backend, Bits, Compiled, Matcher, missing
from draftproof.grammar.vocabulary import Vocabulary
from draftproof.structured import StructuredOutputsParams

try:
    import xgrammar
except ImportError as error:
    raise missing("xgrammar") from error

_PREFIX: Final = re.compile(r"^\[[\d:]+\] \S+?: (Check failed: \(.*?\) is false: )?")
_LENGTHS: Final = re.compile('"(min|max)Length"')
_CONTROL: Final = re.compile(rb"[\x00-\x09\x0b\x0c\x0e-\x1f]")
_NUM_THREADS: Final = 2


@final
class XgrammarMatcher(Matcher):
    """An xgrammar parser. The end-of-text token is never given to it: `cursor.py` takes care of ends."""

    __slots__ = ("_matcher",)

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._matcher = xgrammar.GrammarMatcher(compiled)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)

    def fill(self, bits: Bits) -> None:
        self._matcher.fill_next_token_bitmask(bits)

    def is_complete(self) -> bool:
        return bool(self._matcher.is_completed())


@final
class XgrammarCompiled(Compiled):
    """A compiled grammar of xgrammar."""

    __slots__ = ("_compiled",)

    def __init__(self, compiled: xgrammar.CompiledGrammar) -> None:
        self._compiled = compiled

    def matcher(self) -> XgrammarMatcher:
        return XgrammarMatcher(self._compiled)


@final
class XgrammarBackend(Backend):
    """xgrammar's compiler over one vocabulary. Its own cache is off: ours is bounded (`cache.py`)."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._compiler = self._over(vocabulary.token_bytes)

    def compile(self, params: StructuredOutputsParams) -> XgrammarCompiled:
        return XgrammarCompiled(_told(lambda: self._compiled(params)))

    def _compiled(self, params: StructuredOutputsParams) -> xgrammar.CompiledGrammar:
        spaced = not params.disable_any_whitespace
        if params.json is not None:
            schema = _enforced(json.loads(str(params.json)))
            return self._for_strings_in(schema).compile_json_schema(schema, any_whitespace=spaced)
        if params.json_object:
            return self._compiler.compile_json_schema(json_schema.ANY_OBJECT, any_whitespace=spaced)
        if params.regex is not None:
            return self._compiler.compile_regex(params.regex)
        if params.choice is not None:
            return self._compiler.compile_grammar("root ::= " + " | ".join(map(_literal, params.choice)))
        if params.grammar is not None:
            if "::=" in params.grammar:
                return self._compiler.compile_grammar(params.grammar)
            return self._compiler.compile_lark(params.grammar)
        tag = json.dumps(_tag_of(json.loads(str(params.structural_tag))), ensure_ascii=False)
        return self._for_strings_in(tag, with_special=True).compile_structural_tag(tag)

    def _for_strings_in(self, text: str, *, with_special: bool = False) -> xgrammar.GrammarCompiler:
        """The compiler for a schema or tag: without control characters where its strings have a length.

        xgrammar's strings of a length allow raw control characters, which JSON doesn't. with_special: special tokens
        that the text names, but for those that end the output, have their texts.
        """
        vocabulary = self._vocabulary
        table = list(vocabulary.token_bytes)
        if _LENGTHS.search(text):
            table = [b"" if _CONTROL.search(own) else own for own in table]
        if with_special:
            for token_id, own in vocabulary.special_texts.items():
                if own.decode("utf-8", "replace") in text and token_id not in vocabulary.eos_token_ids:
                    table[token_id] = own
        return self._compiler if table == list(vocabulary.token_bytes) else self._over(table)

    def _over(self, token_bytes: Sequence[bytes]) -> xgrammar.GrammarCompiler:
        info = xgrammar.TokenizerInfo(
            list(token_bytes),
            xgrammar.VocabType.RAW,
            vocab_size=len(token_bytes),
            stop_token_ids=list(self._vocabulary.eos_token_ids) or None,
            add_prefix_space=False,
        )
        return xgrammar.GrammarCompiler(info, max_threads=_NUM_THREADS, cache_enabled=False)


def _enforced(schema: Any) -> str:
    """The text of a JSON schema for xgrammar. Raises GrammarError for what it would not enforce."""
    json_schema.check(schema)
    return json.dumps(json_schema.with_formats_written_out(schema, together=False), ensure_ascii=False)


def _tag_of(tag: Any) -> Any:
    """A structural tag with its JSON schemas as `_enforced` writes them."""
    if isinstance(tag, list):
        return [_tag_of(item) for item in tag]
    if not isinstance(tag, dict):
        return tag
    schemas = ("json_schema", "schema")
    return {name: json.loads(_enforced(value)) if name in schemas else _tag_of(value) for name, value in tag.items()}


def read_fast_tokenizer(tokenizer: Any, vocab_size: int) -> Sequence[bytes]:
    """See `backend.read_fast_tokenizer`."""
    stop_ids = None if getattr(tokenizer, "eos_token_id", None) is not None else [0]
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size, stop_token_ids=stop_ids)
    return [bytes(text) for text in info.decoded_vocab]


def _told(compile_it: Callable[[], xgrammar.CompiledGrammar]) -> xgrammar.CompiledGrammar:
    try:
        return compile_it()
    except (RuntimeError, ValueError, TypeError) as error:
        said = _PREFIX.sub("", str(error)).strip()
        raise GrammarError(f"xgrammar can't compile the grammar: {said}") from error


def _literal(text: str) -> str:
    """A GBNF string literal."""
    escaped = "".join(_escaped(character) for character in text)
    return f'"{escaped}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"
