"""Verifiers: (draft, target laws, noise) -> Verdict. One file each; `VERIFIERS` lists them.

name       keeps a drafted token while                       guarantee  trees  needs the draft's law
keyed      it equals the target's keyed sample               replay     yes    no
greedy     it equals the target's argmax (temperature 0)     replay     yes    no
match      it equals an independent draw from the target     exact-law  yes    no
rejection  a coin lands below p/q                            exact-law  no     yes
block      the whole prefix passes a test                    exact-law  no     yes

Rules for several candidates at a position; on a chain, traversal and multi_path_block are block, the others rejection.
How siblings must be drawn, `Verifier.siblings` says.

name              keeps a drafted token while                       guarantee  trees  needs the draft's law
recursive         a coin lands below p/q, siblings in turn          exact-law  yes    yes
traversal         a path passes a test, from the leaves up          exact-law  yes    yes
hybrid            it is ranked and drawn, or passes as the one draw exact-law  yes    yes
multi_round       as recursive, with independent siblings           exact-law  yes    yes
k_seq             a coin lands below p/(rho q)                      exact-law  yes    yes
multi_path_block  the best of several paths passes block's test     exact-law  paths  yes
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
from draftproof.verify.hybrid import Hybrid
from draftproof.verify.k_seq import KSeq
from draftproof.verify.keyed import Keyed
from draftproof.verify.match import Match
from draftproof.verify.multi_path_block import MultiPathBlock
from draftproof.verify.multi_round import MultiRound
from draftproof.verify.recursive import Recursive
from draftproof.verify.rejection import Rejection
from draftproof.verify.traversal import Traversal

__all__ = [
    "VERIFIERS",
    "BatchVerdict",
    "Block",
    "Greedy",
    "Guarantee",
    "Hybrid",
    "KSeq",
    "Keyed",
    "Match",
    "MultiPathBlock",
    "MultiRound",
    "Recursive",
    "Rejection",
    "Row",
    "TargetRows",
    "Traversal",
    "Verifier",
    "get_verifier",
    "verify_batch",
]

_ALL: Final = (
    *(Keyed(), Greedy(), Match(), Rejection(), Block()),
    *(Recursive(), Traversal(), Hybrid(), MultiRound(), KSeq(), MultiPathBlock()),
)
VERIFIERS: Final[Mapping[str, Verifier]] = MappingProxyType({verifier.name: verifier for verifier in _ALL})
"""Every verifier by name, the default one first."""


def get_verifier(name: str) -> Verifier:
    """The verifier of that name. Raises ParameterError, which lists the names, for any other."""
    try:
        return VERIFIERS[name]
    except KeyError:
        raise ParameterError("verifier", name, "one of " + ", ".join(VERIFIERS)) from None
