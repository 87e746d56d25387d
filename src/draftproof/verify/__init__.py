"""Verifiers: (draft, target laws, noise) -> Verdict. One file each; `VERIFIERS` lists them.

name       keeps a drafted token while                       guarantee  trees  needs the draft's law
keyed      it equals the target's keyed sample               replay     yes    no
greedy     it equals the target's argmax (temperature 0)     replay     yes    no
match      it equals an independent draw from the target     exact-law  yes    no
rejection  a coin lands below p/q                            exact-law  no     yes
block      the whole prefix passes a test                    exact-law  no     yes
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from draftproof.errors import ParameterError
from draftproof.verify.base import Guarantee, Row, TargetRows, Verifier
from draftproof.verify.batch import BatchVerdict, verify_batch
from draftproof.verify.block import Block
from draftproof.verify.greedy import Greedy
from draftproof.verify.keyed import Keyed
from draftproof.verify.match import Match
from draftproof.verify.rejection import Rejection

__all__ = [
    "VERIFIERS",
    "BatchVerdict",
    "Block",
    "Greedy",
    "Guarantee",
    "Keyed",
    "Match",
    "Rejection",
    "Row",
    "TargetRows",
    "Verifier",
    "get_verifier",
    "verify_batch",
]

VERIFIERS: Final[Mapping[str, Verifier]] = MappingProxyType(
    {verifier.name: verifier for verifier in (Keyed(), Greedy(), Match(), Rejection(), Block())}
)
"""Every verifier by name, the default one first."""


def get_verifier(name: str) -> Verifier:
    """The verifier of that name. Raises ParameterError, which lists the names, for any other."""
    try:
        return VERIFIERS[name]
    except KeyError:
        raise ParameterError("verifier", name, "one of " + ", ".join(VERIFIERS)) from None
