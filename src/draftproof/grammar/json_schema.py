"""Which JSON schemas xgrammar honours: the others are refused, since it would leave parts of them out in silence.

Rule: every text that the grammar gives is a document that the schema allows. So a keyword that isn't enforced, alone or
beside others, is an error that names it. The grammar may give fewer texts than the schema allows: properties come in
the schema's order, and only those that it declares unless it says additionalProperties.
Source: JSON Schema 2020-12; which keywords are enforced was found by running xgrammar 0.2.8 against a validator, and
tests/grammar/test_schemas.py does it again. llguidance refuses by itself what it doesn't implement.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from draftproof.errors import GrammarError
from draftproof.grammar import formats, patterns

Schema: TypeAlias = Mapping[str, Any] | bool

ANY_OBJECT: Final = '{"type": "object", "additionalProperties": true}'

_ANNOTATIONS: Final = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema contentEncoding contentMediaType"
    .split()
)  # fmt: skip
_DEFINITIONS: Final = frozenset({"$defs", "definitions"})
_COMBINING: Final = frozenset({"$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_BY_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"}),
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties",
         "unevaluatedProperties"}
    ),
}  # fmt: skip
_REFUSED: Final = frozenset(
    "not if then else dependentRequired dependentSchemas dependencies contains minContains maxContains uniqueItems "
    "propertyNames additionalItems contentSchema $id id $anchor $dynamicAnchor $dynamicRef $recursiveRef "
    "$recursiveAnchor $vocabulary nullable"
    .split()
)  # fmt: skip
_TYPED: Final = frozenset().union(*_BY_TYPE.values())
_KNOWN: Final = _ANNOTATIONS | _DEFINITIONS | _COMBINING | _TYPED | _REFUSED | {"type"}
_OF_STRINGS: Final = ("pattern", "format", "minLength", "maxLength")
_MANY: Final = ("properties", "patternProperties", "$defs", "definitions")
_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE: Final = ("items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems")
_OTHER: Final = "write the schema without it, or try backend='llguidance'"


def check(schema: Any) -> None:
    """Raises GrammarError for the first part of `schema` that xgrammar would not enforce."""
    for path, part in _parts(schema, "#"):
        if isinstance(part, bool):
            continue
        if not isinstance(part, Mapping):
            raise GrammarError(
                f"{path} of the JSON schema is a {type(part).__name__}; an object or a boolean is needed"
            )
        _check_keywords(part, path)
        _check_combining(part, path)
        _check_types(part, path)
        if "object" in _types(part):
            _check_object(part, path)


def refuse_unknown_keywords(schema: Any) -> None:
    """Raises GrammarError for a keyword that JSON Schema doesn't have: a validator would ignore it."""
    for path, part in _parts(schema, "#"):
        for keyword in part if isinstance(part, Mapping) else ():
            if keyword not in _KNOWN and not keyword.startswith("x-"):
                raise _error(path, keyword, "is no keyword of JSON Schema", "remove it, or begin it with x-")


def closed(schema: Any) -> Any:
    """`schema` with additionalProperties: false wherever properties are declared and nothing is said about others.

    Parts of an allOf, and schemas that combine others, stay open: closing them would exclude each other's properties.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _MANY and isinstance(value, Mapping):
            made[keyword] = {name: closed(part) for name, part in value.items()}
        elif keyword in _SINGLE or keyword in ("prefixItems", "anyOf", "oneOf"):
            made[keyword] = closed(value)
        else:
            made[keyword] = value
    says = {"additionalProperties", "patternProperties", "unevaluatedProperties"}
    if "properties" in made and not (says | {"allOf", "anyOf", "oneOf", "$ref"}) & made.keys():
        made["additionalProperties"] = False
    return made


def _check_keywords(part: Mapping[str, Any], path: str) -> None:
    refuse_unknown_keywords({key: part[key] for key in part if key not in (*_MANY, *_LISTS, *_SINGLE)})
    for keyword in part:
        if keyword in _REFUSED and part[keyword] is not False:
            raise _error(path, keyword, "is not enforced by xgrammar", _OTHER)
    pattern = part.get("pattern")
    if isinstance(pattern, str) and (said := patterns.objection(pattern)) is not None:
        raise _error(path, "pattern", *said)
    if "format" in part and part["format"] not in formats.PATTERNS:
        hint = f"the formats are {', '.join(formats.PATTERNS)}; llguidance has {' and '.join(formats.LIMITED)}, too"
        raise _error(path, "format", f"{part['format']!r} is not enforced by xgrammar", hint)
    beside = [keyword for keyword in _OF_STRINGS if keyword in part]
    if len(beside) > 1 and beside != ["minLength", "maxLength"]:
        hint = "write one pattern that says both, or set backend='llguidance'"
        raise _error(path, beside[1], f"is not enforced beside {beside[0]} by xgrammar", hint)
    reference = part.get("$ref")
    if isinstance(reference, str) and not re.match(r"#(/|$)", reference):
        raise _error(path, "$ref", f"{reference!r} is not a path inside the schema", "write #/$defs/…")


def _check_combining(part: Mapping[str, Any], path: str) -> None:
    combining = [keyword for keyword in part if keyword in _COMBINING]
    if not combining:
        return
    others = [keyword for keyword in part if keyword in (_TYPED | {"type"}) or keyword in combining[1:]]
    if combining[0] in ("enum", "const"):
        values = part["enum"] if combining[0] == "enum" else [part["const"]]
        if others == ["type"] and isinstance(values, list) and all(_is_of(value, _types(part)) for value in values):
            others = []
    if others:
        hint = "move it into the alternatives, or set backend='llguidance'"
        raise _error(path, others[0], f"is not enforced beside {combining[0]}", hint)
    if "allOf" in part and len(part["allOf"]) != 1:
        raise _error(path, "allOf", "of several schemas is not enforced by xgrammar", "set backend='llguidance'")
    if "oneOf" in part and not _exclusive(part["oneOf"]):
        hint = "use anyOf, or alternatives of different types or with a const of their own"
        raise _error(path, "oneOf", "needs alternatives that can't both hold", hint)


def _check_types(part: Mapping[str, Any], path: str) -> None:
    types = _types(part)
    for type_name, keywords in _BY_TYPE.items():
        found = sorted(keywords & part.keys())
        if found and not ({type_name, "integer" if type_name == "number" else type_name} & types):
            raise _error(path, found[0], f"is enforced beside type {type_name!r} alone", f'say "type": "{type_name}"')


def _check_object(part: Mapping[str, Any], path: str) -> None:
    declared = part.get("properties", {})
    undeclared = [name for name in part.get("required", ()) if name not in declared]
    if undeclared:
        raise _error(path, "required", f"names {undeclared[0]!r}, which properties doesn't declare", "declare it")
    names = list(part.get("patternProperties", ()))
    if not names:
        return
    open_ended = part.get("additionalProperties", False) is not False or part.get("unevaluatedProperties") is not None
    if len(names) > 1 or open_ended:
        raise _error(
            path, "patternProperties", "is enforced alone: one pattern, no other undeclared properties", _OTHER
        )
    if any(re.search(names[0], name) for name in declared):
        raise _error(path, "patternProperties", "matches a property that is declared as well", "change the pattern")
    if (said := patterns.objection(names[0])) is not None:
        raise _error(path, "patternProperties", *said)


def with_formats_written_out(schema: Any, *, together: bool) -> Any:
    """A copy of `schema` in which each format is what it means; see `formats.write_out`."""
    copied = copy.deepcopy(schema)
    formats.write_out([part for _, part in _parts(copied, "#")], together=together)
    return copied


def _parts(schema: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every subschema with its path."""
    yield path, schema
    if not isinstance(schema, Mapping):
        return
    for keyword, value in schema.items():
        if keyword in _MANY and isinstance(value, Mapping):
            for name, part in value.items():
                yield from _parts(part, f"{path}/{keyword}/{name}")
        elif keyword in _LISTS and isinstance(value, list):
            for index, part in enumerate(value):
                yield from _parts(part, f"{path}/{keyword}/{index}")
        elif keyword in _SINGLE and isinstance(value, (Mapping, bool)):
            yield from _parts(value, f"{path}/{keyword}")


def _types(part: Mapping[str, Any]) -> set[str]:
    given = part.get("type", [])
    return {given} if isinstance(given, str) else set(given)


def _is_of(value: Any, types: set[str]) -> bool:
    if isinstance(value, bool) or value is None:
        return ("null" if value is None else "boolean") in types
    if isinstance(value, int):
        return bool(types & {"integer", "number"})
    names = {float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)] in types


def _exclusive(alternatives: Any) -> bool:
    """Whether no document fits two alternatives: their types differ, or a value that both require does."""
    kinds = [_kinds(alternative) for alternative in alternatives]
    return all(
        _differ(first, second) for index, first in enumerate(kinds) for second in kinds[index + 1 :]
    )  # fmt: skip


def _kinds(part: Any) -> dict[str, set[str]]:
    """Where a value must stand ("" is the document, else a required property) -> what it can be there."""
    if not isinstance(part, Mapping):
        return {}
    found: dict[str, set[str]] = {}
    types = _types(part)
    if "const" in part or "enum" in part:
        values = part.get("enum", [part.get("const")])
        found[""] = {f"value {value!r}" for value in values} if all(isinstance(v, str) for v in values) else set()
    elif types:
        found[""] = {"number" if name == "integer" else name for name in types}
    for name in part.get("required", ()):
        inner = _kinds(part.get("properties", {}).get(name))
        if inner.get(""):
            found[name] = inner[""]
    return {where: kinds for where, kinds in found.items() if kinds}


def _differ(first: Mapping[str, set[str]], second: Mapping[str, set[str]]) -> bool:
    for where in first.keys() & second.keys():
        either = first[where] | second[where]
        # A string's value and the type string are not compared: they may be the same.
        comparable = all(kind.startswith("value ") for kind in either) or not any(
            kind.startswith("value ") for kind in either
        )
        if comparable and not first[where] & second[where]:
            return True
    return False


def _error(path: str, keyword: str, what: str, hint: str) -> GrammarError:
    return GrammarError(f"JSON schema, {path}: {keyword} {what}; {hint}")
