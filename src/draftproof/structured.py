"""StructuredOutputsParams: which texts a request may produce, in vLLM's words.

Exactly one kind: json (a JSON schema), json_object (any JSON object), regex, choice, grammar (GBNF, with `root ::=`, or
Lark, with `start:`) or structural_tag (xgrammar's format). Schemas are kept as canonical JSON text, so that equal
requests share one compiled grammar. What needs a tokenizer, a backend or the schema's meaning is checked when the
request is admitted, and fails that request alone.

Source: vLLM's StructuredOutputsParams. Deviations: `backend` and `start_after` belong to the request here; there is no
backend that is fallen back to, so `disable_fallback` is taken at any value; properties that a schema doesn't declare
are left out unless it says additionalProperties, so `disable_additional_properties` has nothing left to turn off.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from draftproof.errors import ParameterError
from draftproof.validation import checked_strings, checked_token_ids

KINDS: Final = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
BACKENDS: Final = ("xgrammar", "llguidance")
_NEUTRAL: Final[Mapping[str, tuple[tuple[object, ...], str]]] = {
    "disable_fallback": ((None, False, True), ""),
    "disable_additional_properties": (
        (None, True),
        "undeclared properties are left out already; a schema allows them with additionalProperties: true",
    ),
}


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """The texts that a request may produce. All arguments are keywords; unknown ones raise ParameterError.

    json: a JSON schema: a mapping, a JSON text, a boolean, or a class with pydantic's `model_json_schema`.
    json_object: True for any JSON object. regex: the whole text matches it. choice: the text is one of these.
    grammar: GBNF or Lark. structural_tag: xgrammar's structural tags, a mapping or JSON text.
    disable_any_whitespace: JSON in one line, with ", " and ": ", where any whitespace is allowed otherwise.
    whitespace_pattern: a regex of what may stand between JSON's elements instead; llguidance has it.
    backend: xgrammar or llguidance; both are in the extra `structured`.
    start_after: a text, or token ids, after which the grammar begins: a reasoning model's end marker. What comes
    before it is free. It is looked for in the output alone.
    """

    json: Mapping[str, Any] | str | bool | type | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    backend: str = "xgrammar"
    start_after: str | Sequence[int] | None = None

    def __new__(cls, *_: object, **given: object) -> Self:
        _refuse_unknown(given)
        return super().__new__(cls)

    def __init_subclass__(cls) -> None:
        raise TypeError("StructuredOutputsParams is final")

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        if self.json_object is not None and not isinstance(self.json_object, bool):
            raise ParameterError("json_object", self.json_object, "True, or left unset")
        put("json_object", self.json_object or None)
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            said = ", ".join(given) or "none of them"
            raise ParameterError("structured_outputs", said, f"exactly one of {', '.join(KINDS)}")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ParameterError(name, value, "a text", f"got a {type(value).__name__}")
        if self.json is not None:
            put("json", _json_text("json", self.json, (dict, bool)))
        if self.structural_tag is not None:
            put("structural_tag", _json_text("structural_tag", self.structural_tag, (dict,)))
        if self.choice is not None:
            put("choice", checked_strings("choice", self.choice))
            if not self.choice:
                raise ParameterError("choice", [], "at least one text")
        self._check_options()

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> Self:
        """From a mapping, as read from JSON; None means "unset". Raises ParameterError for unknown keys."""
        _refuse_unknown(given)
        return cls(**{key: value for key, value in given.items() if key not in _NEUTRAL and value is not None})

    @property
    def kind(self) -> str:
        """Which of KINDS is set."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    @property
    def is_json(self) -> bool:
        """True for json and json_object."""
        return self.kind in ("json", "json_object")

    def _check_options(self) -> None:
        if not isinstance(self.disable_any_whitespace, bool):
            raise ParameterError("disable_any_whitespace", self.disable_any_whitespace, "True or False")
        if self.backend not in BACKENDS:
            raise ParameterError("backend", self.backend, f"one of {', '.join(BACKENDS)}")
        if self.whitespace_pattern is not None and not isinstance(self.whitespace_pattern, str):
            raise ParameterError("whitespace_pattern", self.whitespace_pattern, "a regex")
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and not self.is_json:
                raise ParameterError(name, getattr(self, name), "left unset with anything but json or json_object")
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            raise ParameterError("whitespace_pattern", self.whitespace_pattern, "unset with disable_any_whitespace")
        if self.whitespace_pattern is not None and self.backend == "xgrammar":
            hint = "set backend='llguidance'"
            raise ParameterError("whitespace_pattern", self.whitespace_pattern, "unset with backend='xgrammar'", hint)
        if self.structural_tag is not None and self.backend != "xgrammar":
            raise ParameterError("backend", self.backend, "xgrammar with structural_tag")
        if self.start_after is not None and not isinstance(self.start_after, str):
            # As given: a marker may hold the same id twice.
            checked_token_ids("start_after", self.start_after)
            object.__setattr__(self, "start_after", tuple(int(token_id) for token_id in self.start_after))
        if self.start_after is not None and len(self.start_after) == 0:
            raise ParameterError("start_after", self.start_after, "a text or token ids, at least one")


def structured_of(given: object, *, ignore_eos: bool) -> StructuredOutputsParams | None:
    """SamplingParams' field from what was given for it. Raises ParameterError."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        given = StructuredOutputsParams.from_mapping(given)
    if not isinstance(given, StructuredOutputsParams):
        raise ParameterError("structured_outputs", given, "a StructuredOutputsParams or a mapping of its fields")
    if ignore_eos:
        hint = "nothing but EOS can follow a grammar's end"
        raise ParameterError("ignore_eos", True, "False with structured_outputs", hint)
    return given


_FIELDS: Final = tuple(item.name for item in fields(StructuredOutputsParams))


def _refuse_unknown(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if name in _FIELDS:
            continue
        if name in _NEUTRAL:
            neutral, hint = _NEUTRAL[name]
            if any(value is item for item in neutral):
                continue
            raise ParameterError(name, value, "left unset", hint)
        close = difflib.get_close_matches(str(name), _FIELDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(_FIELDS)}"
        raise ParameterError(str(name), value, "a field of StructuredOutputsParams", hint)


def _json_text(name: str, value: Any, allowed: tuple[type, ...]) -> str:
    """Canonical JSON text: what is given, whatever its spaces; the keys' order is part of what is given."""
    words = "a JSON schema: a mapping, JSON text or a pydantic model" if name == "json" else "a mapping or JSON text"
    if isinstance(value, type):
        make = getattr(value, "model_json_schema", None)
        if make is None:
            raise ParameterError(name, value, words)
        value = make()
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ParameterError(name, value, words, f"the text is not JSON: {error}") from None
    if isinstance(value, Mapping):
        value = dict(value)
    if not isinstance(value, allowed):
        raise ParameterError(name, value, words, f"got a {type(value).__name__}")
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ParameterError(name, value, words, f"it can't be written as JSON: {error}") from None
