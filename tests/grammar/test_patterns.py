"""Patterns inside JSON: what xgrammar is trusted with agrees with Python's regexes on every short text."""

import itertools
import json
import random
import re

import pytest
import xgrammar
from xgrammar import testing

from draftproof.grammar.patterns import objection

TEXTS = ["".join(letters) for size in range(5) for letters in itertools.product("abc", repeat=size)]
QUANTIFIERS = ("?", "*", "+", "{0,2}", "{1,2}", "{2}", "{0,}", "{1,}", "{2,2}")


def drawn(source, depth):
    """A random regex over a, b, c."""
    kind = source.random()
    if depth == 0 or kind < 0.25:
        return source.choice(["a", "b", "c", "[ab]", "[^a]"]) + source.choice(["", "", "", *QUANTIFIERS])
    if kind < 0.5:
        return drawn(source, depth - 1) + drawn(source, depth - 1)
    if kind < 0.75:
        return f"({drawn(source, depth - 1)}|{source.choice([drawn(source, depth - 1), ''])})"
    return f"({drawn(source, depth - 1)}){source.choice(QUANTIFIERS)}"


def wrong(pattern):
    """The short texts on which xgrammar's pattern inside JSON differs from Python's."""
    grammar = xgrammar.Grammar.from_json_schema(json.dumps({"type": "string", "pattern": f"^{pattern}$"}))
    rule = re.compile(pattern)
    accepts = testing._is_grammar_accept_string
    return [text for text in TEXTS if accepts(grammar, json.dumps(text)) != (rule.fullmatch(text) is not None)]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_taken_is_right(seed):
    source, num_taken, num_groups = random.Random(seed), 0, 0
    while num_taken < 60:
        pattern = drawn(source, 3)
        if objection(f"^({pattern})$") is None:
            num_taken += 1
            num_groups += re.search(r"\)[?*+{]|\|", pattern) is not None
            assert wrong(f"({pattern})") == [], pattern
    assert num_groups > 10


@pytest.mark.parametrize("pattern", [r"1(\.[0-9]+)?3", "([ab]{1,2}|[ab])", "(c(a)*)?", "((([ab]){1,}){2})?"])
def test_what_is_refused_is_wrong(pattern):
    """The mutant: everything is taken."""
    assert "varies" in objection(f"^{pattern}$")[0]
    if "1" not in pattern.replace("{1", ""):
        assert wrong(pattern) != []


@pytest.mark.parametrize(
    "pattern",
    ["^[a-z]{2,8}$", r"^\d{3}-\d{4}$", "^(a|bc)(d|e){2}$", "^(ab)*c+$", r"^[()|?]*\|$", "^(?:ab|c)?x$", "^[]a|]+$"],
)
def test_plain_patterns_are_taken(pattern):
    assert objection(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["^(a|b*)$", "^a|b+$", "^(a(b)?){2}$", "^((a?b)|c)$", r"^(\(|x*)$", "^(a{1,2}|b)$", "^(?:a+)*$"]
)
def test_lengths_that_vary_within_alternatives_or_repetitions_are_refused(pattern):
    assert "varies" in objection(pattern)[0]
