"""JSON Schema's `format`, as patterns: the libraries' own are looser than the formats (2026-02-31, 067.7.80.57).

Every text that a pattern allows is one of the format; some formats have more texts than their pattern: no leap second
(23:59:60), at most nine digits of a second, no year 0000, no quoted local part or address literal in an e-mail, no IPv6
zone, upper-case T and Z.
Sources: RFC 3339 (date, time, date-time, duration), RFC 1123 (hostname), RFC 5321 (email), RFC 2673 (ipv4), RFC 4291
(ipv6), RFC 3986 (uri), RFC 4122 (uuid).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_YEAR: Final = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR: Final = (
    "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"  # by 4, not by 100 but by 400
)
_DATE: Final = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK: Final = "([01][0-9]|2[0-3]):[0-5][0-9]"
_FRACTION: Final = rf"(|\.({'|'.join(f'[0-9]{{{n}}}' for n in range(1, 10))}))"
_TIME: Final = f"{_CLOCK}:[0-5][0-9]{_FRACTION}(Z|[+-]{_CLOCK})"
_DAY_TIME: Final = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_DURATION: Final = f"P([0-9]+W|{_DAY_TIME}|([0-9]+D|[0-9]+M([0-9]+D)?|[0-9]+Y([0-9]+M([0-9]+D)?)?)({_DAY_TIME})?)"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])"
_IPV4: Final = rf"{_BYTE}(\.{_BYTE}){{3}}"
_HEX: Final = "[0-9A-Fa-f]"
_GROUP: Final = f"({_HEX}|{_HEX}{{2}}|{_HEX}{{3}}|{_HEX}{{4}})"
_UUID: Final = f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME: Final = rf"{_LABEL}(\.{_LABEL})*"
_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_EMAIL: Final = rf"{_ATOM}(\.{_ATOM})*@{_HOSTNAME}"


def _ipv6() -> str:
    """RFC 3986's IPv6address: eight groups, the last two also as an IPv4 address, `::` for one group or more."""
    last_two = f"({_GROUP}:{_GROUP}|{_IPV4})"
    ways = [f"({_GROUP}:){{6}}{last_two}"]
    for before in range(8):
        left = "|".join(["", *(f"{_GROUP}(:{_GROUP}){{{more}}}" for more in range(before))])
        after = 7 - before  # groups that may still follow `::`
        right = f"({_GROUP}:){{{after - 2}}}{last_two}" if after >= 2 else _GROUP * after
        ways.append(f"({left})::{right}")
    return f"({'|'.join(ways)})"


def _uri() -> str:
    """RFC 3986's URI, with a scheme, without IP literals of a later version."""
    others = r"A-Za-z0-9._~!$&'()*+,;="
    escaped = f"%{_HEX}{{2}}"
    pchar = f"([{others}:@-]|{escaped})"
    host = rf"(\[{_ipv6()}\]|([{others}-]|{escaped})*)"
    authority = f"(([{others}:-]|{escaped})*@)?{host}(:[0-9]*)?"
    hierarchy = f"(//{authority}(/{pchar}*)*|/({pchar}+(/{pchar}*)*)?|({pchar}+(/{pchar}*)*)?)"
    tail = f"([{others}:@/?-]|{escaped})*"
    return rf"[A-Za-z][A-Za-z0-9+.-]*:{hierarchy}(\?{tail})?(#{tail})?"


PATTERNS: Final[Mapping[str, str]] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uuid": _UUID,
}
"""Each format as one regex of the whole text, of the kind that xgrammar is right about (`patterns.py`)."""

LIMITED: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "duration": ({"pattern": f"^{_DURATION}$"},),
    "uri": ({"pattern": f"^{_uri()}$"},),
    "hostname": ({"pattern": f"^{_HOSTNAME}$", "maxLength": 253},),
    "email": ({"pattern": f"^{_EMAIL}$", "maxLength": 254}, {"pattern": "^[^@]{1,64}@"}),
}
"""Formats of lengths that vary, as schemas that hold together: llguidance has them."""


def write_out(parts: Iterable[Any], *, together: bool) -> None:
    """Replaces `format` by what it means in every subschema of `parts`, in place.

    together: the library enforces patterns and lengths beside each other; else a part gets its format's pattern, and
    `json_schema.check` has seen that nothing stands beside it. Formats that aren't in this file are left as they are.
    """
    for part in parts:
        name = str(part.get("format")) if isinstance(part, dict) else ""
        meant = LIMITED.get(name) if together else None
        if name in PATTERNS:
            meant = ({"pattern": f"^({PATTERNS[name]})$"},)
        if meant is None:
            continue
        del part["format"]
        if together:
            part["allOf"] = [*part.get("allOf", ()), *(dict(one) for one in meant)]
        else:
            part.update(meant[0])
