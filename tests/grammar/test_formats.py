"""Every text that a format's pattern allows is one of the format, and what the docstring doesn't name is allowed."""

import datetime
import ipaddress
import itertools
import json
import random
import re
import uuid
from urllib.parse import urlsplit

import numpy as np
import pytest

from draftproof import GrammarError
from draftproof.grammar.formats import LIMITED, PATTERNS
from draftproof.grammar.patterns import objection
from tests.grammar.bytes_vocabulary import EOS
from tests.grammar.test_schemas import TOKENIZER, cursor_of

LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")


def is_date(text):
    return len(text) == 10 and datetime.date.fromisoformat(text) is not None


def is_time(text):
    clock, offset = text[:8], text[8:].lstrip(".0123456789")
    datetime.time.fromisoformat(clock)
    if offset != "Z":
        datetime.time.fromisoformat(offset[1:])
    return len(clock) == 8 and re.fullmatch(r"(\.[0-9]+)?", text[8 : len(text) - len(offset)]) is not None


def is_hostname(text):
    return len(text) <= 253 and all(LABEL.fullmatch(label) for label in text.split("."))


def is_email(text):
    local, _, host = text.partition("@")
    atoms = all(re.fullmatch(r"[^\s\"(),:;<>@\[\\\].]+", atom) for atom in local.split("."))
    return 0 < len(local) <= 64 and atoms and is_hostname(host) and len(text) <= 254


def is_uri(text):
    return urlsplit(text).scheme != "" and re.search(r"%(?![0-9A-Fa-f]{2})|[\s<>\"{}|\\^`]", text) is None


def is_duration(text):
    date, _, time = text[1:].partition("T")
    orders = [re.findall("[A-Z]", part) for part in (date, time)]
    runs = all("".join(order) in whole for order, whole in zip(orders, ("YMD", "HMS"), strict=True))
    return text[0] == "P" and (date + time != "") and (runs or re.fullmatch(r"P\d+W", text) is not None)


CHECKS = {
    "date": is_date,
    "time": is_time,
    "date-time": lambda text: text[10] == "T" and is_date(text[:10]) and is_time(text[11:]),
    "duration": is_duration,
    "ipv4": lambda text: ipaddress.IPv4Address(text) is not None,
    "ipv6": lambda text: "%" not in text and ipaddress.IPv6Address(text) is not None,
    "uuid": lambda text: len(text) == 36 and uuid.UUID(text) is not None,
    "hostname": is_hostname,
    "email": is_email,
    "uri": is_uri,
}

GOOD = {
    "date": ["2024-02-29", "2000-02-29", "1999-12-31", "0001-01-01", "9999-04-30"],
    "time": ["00:00:00Z", "23:59:59+23:59", "12:30:01.5Z", "12:30:01.123456789-00:00"],
    "date-time": ["2024-02-29T23:59:59Z", "1985-04-12T23:20:50.52Z"],
    "duration": ["P1W", "P3Y6M4DT12H30M5S", "PT0S", "P1Y", "PT1M", "P1M2D"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "10.20.3.100"],
    "ipv6": ["::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::ffff:192.168.0.1", "fe80::a:b"],
    "uuid": ["2EB8AA08-aa98-11ea-B4aa-73B441D16380"],
    "hostname": ["a", "www.example.com", "xn--4gbwdl.xn--wgbh1c", "a" * 63 + ".b", "0-9.c"],
    "email": ["joe.bloggs@example.com", "te~st@example.com", "a" * 64 + "@b"],
    "uri": ["http://user:p@example.com:80/a/b?c=d#e", "urn:isbn:0", "mailto:a@b.c", "http://[::1]/", "x:", "ftp://h/%20"],
}  # fmt: skip
BAD = {
    "date": ["2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "2024-00-10", "2024-1-1", "24-01-01"],
    "time": ["24:00:00Z", "12:60:00Z", "12:00:61Z", "12:00:00", "12:00:00.Z", "12:00:00+24:00", "12:00:001Z"],
    "date-time": ["2023-02-29T00:00:00Z", "2024-01-01 00:00:00Z", "2024-01-01T00:00:00"],
    "duration": ["P", "PT", "P1", "P1D2H", "P1YT", "P1W2D", "P1Y2D", "PT1H1S", "P1S", "1D"],
    "ipv4": ["067.7.80.57", "256.1.1.1", "1.2.3", "1.2.3.4.5", "1.2.3.04"],
    "ipv6": [":", "1:2", "1::2::3", "1:2:3:4:5:6:7:8:9", "12345::", "::1.2.3.256", "fe80::a%eth1", "1:2:3:4:5:6:7:8::"],
    "uuid": ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa0g-aa98-11ea-b4aa-73b441d1638"],
    "hostname": ["", "-a", "a-", "a..b", ".a", "a.", "a_b", "a" * 64, ".".join(["a" * 62] * 4) + ".ab"],
    "email": ["a", "@b", "a@", ".a@b", "a.@b", "a..b@c", "a@-b", "a" * 65 + "@b", "a@b@c"],
    "uri": ["//a/b", "a b:", "1a:b", "http://a b", "x:%2", "http://[::1", "x:\\y", "a/b"],
}  # fmt: skip


def cursor(name, backend):
    return cursor_of({"json": {"type": "string", "format": name}, "backend": backend})


def takes(at, text):
    """Whether the grammar gives `text` as a JSON string."""
    for token_id in TOKENIZER.ids(json.dumps(text)):
        if not at.allows(token_id):
            return False
        at = at.after(token_id)
    return at.allows(EOS)


def held(check, text):
    try:
        return check(text)
    except (ValueError, IndexError):
        return False


CASES = [("xgrammar", name) for name in PATTERNS] + [("llguidance", name) for name in (*PATTERNS, *LIMITED)]


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_the_library_takes_what_the_format_is_and_nothing_else(backend, name):
    at = cursor(name, backend)
    assert [text for text in GOOD[name] if not takes(at, text) or not held(CHECKS[name], text)] == []
    assert [text for text in BAD[name] if takes(at, text)] == []


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_a_text_that_is_changed_in_one_place_is_taken_just_where_the_pattern_matches(backend, name):
    """The libraries against Python's own regexes: no state of an automaton is merged with another."""
    source, at = random.Random(f"{name} {backend}"), cursor(name, backend)
    alphabet = sorted({*"".join(GOOD[name]), *"0:."})
    rules = [PATTERNS[name]] if name in PATTERNS else []
    for _ in range(60):
        text = list(source.choice(GOOD[name]))
        where = source.randrange(len(text))
        text[where : where + source.choice([0, 1])] = source.choices(alphabet, k=source.choice([0, 1, 1, 2]))
        text = "".join(text)
        if rules:
            assert takes(at, text) == (re.fullmatch(rules[0], text) is not None), text
        elif takes(at, text):
            assert held(CHECKS[name], text), text


@pytest.mark.parametrize(("backend", "name"), CASES)
def test_random_texts_of_a_format_are_of_it(backend, name):
    beginning, quote = cursor(name, backend), TOKENIZER.id(b'"')
    for seed in range(12):
        source, at, ids = random.Random(seed), beginning, []
        while not at.allows(EOS):
            allowed = [token_id for token_id in np.flatnonzero(at.mask).tolist() if token_id != EOS]
            stop = quote in allowed and ids and (len(ids) > 40 or source.random() < 0.3)
            ids.append(quote if stop else source.choice(allowed))
            at = at.after(ids[-1])
        text = json.loads(TOKENIZER.decode(ids))
        assert held(CHECKS[name], text), text


def test_dates_are_the_calendar():
    rule = re.compile(PATTERNS["date"])
    for year, month, day in itertools.product([1, 4, 96, 100, 400, 1900, 2000, 2023, 2024, 9999], range(14), range(33)):
        text = f"{year:04}-{month:02}-{day:02}"
        assert (rule.fullmatch(text) is not None) == held(is_date, text), text


def test_addresses_are_those_of_the_standard_library():
    source, rule, num_good = random.Random(1), re.compile(PATTERNS["ipv6"]), 0
    for _ in range(4000):
        groups = [source.choice(["0", "ab", "1234", "12345", "F", ""]) for _ in range(source.randint(0, 9))]
        if source.random() < 0.6:
            groups = ["a" if group in ("", "12345") else group for group in groups]
        text = ":".join(groups)
        if source.random() < 0.5:
            where = source.randint(0, len(text))
            text = f"{text[:where]}::{text[where:]}"
        text += source.choice(["", "", ":1.2.3.4"])
        num_good += held(CHECKS["ipv6"], text)
        assert (rule.fullmatch(text) is not None) == held(CHECKS["ipv6"], text), text
    assert num_good > 400


def test_patterns_are_of_the_kind_that_xgrammar_is_right_about():
    assert [name for name, pattern in PATTERNS.items() if objection(f"^({pattern})$") is not None] == []


@pytest.mark.parametrize("name", LIMITED)
def test_formats_of_lengths_that_vary_are_refused_by_xgrammar(name):
    with pytest.raises(GrammarError, match="llguidance has"):
        cursor(name, "xgrammar")


def test_formats_stand_beside_other_keywords_with_llguidance():
    schema = {"type": "string", "format": "date", "pattern": "^20", "allOf": [{"pattern": "29$"}]}
    at = cursor_of({"json": schema, "backend": "llguidance"})
    assert takes(at, "2024-02-29")
    assert not takes(at, "2023-02-29") and not takes(at, "2024-02-28") and not takes(at, "1996-02-29")


def test_the_libraries_own_formats_would_not_do():
    """The mutant: formats left to xgrammar."""
    import xgrammar

    info = xgrammar.TokenizerInfo([b"<eos>", b"a"], xgrammar.VocabType.RAW, vocab_size=2, stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    for name, text in (("date", "2023-02-29"), ("ipv4", "067.7.80.57")):
        compiled = compiler.compile_json_schema(json.dumps({"type": "string", "format": name}))
        assert xgrammar.GrammarMatcher(compiled).accept_string(json.dumps(text))
