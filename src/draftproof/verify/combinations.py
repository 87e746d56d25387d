"""What `prove` runs over: every verifier, draft law and topology, and the instances for each.

An instance is a pair of random prefix-dependent tables (see `tables.PAIR_KINDS`) or a pair of logits tables through
the sampler chain with penalties and filters on (`chain_settings.CHAIN_SETTINGS`). Its size is bounded by the number of
random paths, which grows with vocabulary to the power of the drafted tokens: up to 4 tokens and drafts of 3 in one
pass, up to 3 tokens in two passes; trees of random tokens have the smaller vocabularies. A verifier is proved on the
topologies that it takes, with siblings drawn as it wants them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from draftproof.core import Siblings
from draftproof.verify import VERIFIERS
from draftproof.verify.base import Verifier
from draftproof.verify.chain_settings import CHAIN_SETTINGS, PENALTIES, SAMPLER_SETTINGS, allows_zero
from draftproof.verify.chain_tables import chain_pair
from draftproof.verify.proposals import Shape
from draftproof.verify.tables import PAIR_KINDS, Pair, PairKind, random_pair

DraftLaw: TypeAlias = Literal["PointMass", "Dense", "Sparse", "Dense, target's field", "every draft"]
"""The law that drafts are drawn from. "Dense, target's field": with the noise that the target will use. "every draft":
each draft of the shape over the vocabulary, one after the other."""

CHAINS: Final[tuple[Shape, ...]] = ((1,), (1, 1), (1, 1, 1))
TREES: Final[tuple[Shape, ...]] = ((2, 1), (2, 2), (3, 1))
PATHS: Final[tuple[Shape, ...]] = ((2, 1), (3, 1), (2, 1, 1))
_TWO_PASS_KINDS: Final[tuple[PairKind, ...]] = ("plain", "zeros", "equal", "one-hot")


@dataclass(frozen=True, slots=True)
class Instance:
    """Which pair of tables: a kind of `PAIR_KINDS` or a setting of `CHAIN_SETTINGS`."""

    kind: str
    vocab_size: int
    seed: int = 1

    def pair(self, *, greedy: bool) -> Pair:
        """The tables; greedy: the target's rows are point masses, as at temperature 0."""
        if self.kind in CHAIN_SETTINGS:
            return chain_pair(self.kind, self.vocab_size, self.seed, greedy=greedy)
        kind = cast(PairKind, self.kind)
        return random_pair(kind, self.vocab_size, self.seed, target_form="PointMass" if greedy else "mixed")


@dataclass(frozen=True, slots=True)
class Combination:
    """One line of the proof: a verifier, a draft law, a topology, a number of passes, and the instances."""

    verifier: str
    law: DraftLaw
    shape: Shape
    num_passes: int
    instances: tuple[Instance, ...]

    @property
    def topology(self) -> str:
        """ "chain 3" or "tree 2-1"."""
        if set(self.shape) == {1}:
            return f"chain {len(self.shape)}"
        return "tree " + "-".join(map(str, self.shape))


def combinations(*, quick: bool = False) -> Iterator[Combination]:
    """Every combination; quick: one instance each, small vocabularies, which takes seconds."""
    for name, verifier in VERIFIERS.items():
        shapes = shapes_of(verifier)
        laws: list[DraftLaw] = ["PointMass", "Dense", "Sparse"]
        if name == "keyed":
            laws += ["Dense, target's field", "every draft"]
        for law in laws:
            for shape in shapes:
                if law == "PointMass" and not takes_ranks(verifier, shape):
                    continue
                for num_passes in (1, 2):
                    if quick:
                        instances = _quick(law, shape, num_passes)
                    elif shape in CHAINS:
                        instances = _chain_instances(law, len(shape), num_passes)
                    elif verifier.siblings is None or law == "PointMass":
                        instances = _tree_instances(law, shape, num_passes)
                    else:
                        instances = _sampled_tree_instances(law, verifier.siblings, shape, num_passes)
                    if name == "greedy":
                        instances = [instance for instance in instances if allows_zero(instance.kind)]
                    if instances:
                        yield Combination(name, law, shape, num_passes, tuple(instances))


def shapes_of(verifier: Verifier) -> tuple[Shape, ...]:
    """The topologies that a verifier is proved on."""
    if not verifier.supports_trees:
        return CHAINS
    return (*CHAINS, *(TREES if verifier.supports_branches_below else PATHS))


def takes_ranks(verifier: Verifier, shape: Shape) -> bool:
    """Whether siblings may be ranked point masses: not where they must be independent draws of one law."""
    return shape in CHAINS or verifier.siblings is not Siblings.INDEPENDENT


def _quick(law: DraftLaw, shape: Shape, num_passes: int) -> list[Instance]:
    is_chain = shape in CHAINS
    if num_passes == 2:
        return [Instance("zeros", 2)] if is_chain and len(shape) <= 2 else []
    instances = [Instance("plain", 2), Instance("zeros", 3 if is_chain and len(shape) <= 2 else 2)]
    if shape == (1, 1) and law == "Dense":
        instances.append(Instance(PENALTIES, 2))
    return instances


def _chain_instances(law: DraftLaw, length: int, num_passes: int) -> list[Instance]:
    if law == "every draft":
        return _all(("plain", "zeros", "one-hot"), (2, 3) if num_passes == 1 or length == 1 else (2,))
    if num_passes == 1:
        settings = [name for name in CHAIN_SETTINGS if name not in SAMPLER_SETTINGS] if length <= 2 else [PENALTIES]
        return _all(PAIR_KINDS, (2, 3, 4)) + _all(settings, (3,))
    settings = [PENALTIES]
    # Two passes over two drafts: a state that a rejected run left behind, or a coin drawn again, would show.
    samplers = _all(list(SAMPLER_SETTINGS), (2,)) if length == 2 and law != "Sparse" else []
    if law == "PointMass" and length < 3:
        return _all(PAIR_KINDS, (2, 3)) + _all(settings, (3,)) + samplers
    if law == "PointMass":
        return _all(PAIR_KINDS, (2,)) + _all(("zeros",), (3,))
    if length == 1:
        return _all(PAIR_KINDS, (2, 3)) + _all(settings, (3,))
    if length == 2:
        return _all(PAIR_KINDS, (2,)) + _all(_TWO_PASS_KINDS[:2], (3,)) + _all(settings, (2,)) + samplers
    return _all(_TWO_PASS_KINDS[:2], (2,))


def _tree_instances(law: DraftLaw, shape: Shape, num_passes: int) -> list[Instance]:
    if law == "every draft":
        return _all(("plain", "one-hot"), (2,)) if num_passes == 1 else []
    if law == "PointMass":
        if num_passes == 2:
            samplers = _all(list(SAMPLER_SETTINGS), (2,)) if shape == (2, 1) else []
            return _all(_TWO_PASS_KINDS, (2, 3)) + samplers
        return _all(PAIR_KINDS, (2, 3, 4)) + _all([PENALTIES], (3,))
    if num_passes == 2:
        return _all(("zeros", "ties"), (2,)) if shape == (2, 1) else []
    largest: dict[Shape, list[Instance]] = {
        (2, 1): [Instance("plain", 3), Instance("zeros", 4)],
        (2, 2): [Instance("zeros", 3)],
    }
    return _all(PAIR_KINDS, (2,)) + largest.get(shape, [Instance("one-hot", 3)])


def _sampled_tree_instances(law: DraftLaw, siblings: Siblings, shape: Shape, num_passes: int) -> list[Instance]:
    """Trees under a ratio test. Independent siblings have most paths: K of them meet in V^K ways."""
    differ = siblings is not Siblings.INDEPENDENT
    if num_passes == 2:
        instances = _all(("plain", "zeros") if shape == (2, 1) else ("zeros",), (2,)) + [Instance("zeros", 3, 2)]
        return [*instances, Instance("plain", 3)] if differ and shape == (2, 1) and law == "Dense" else instances
    instances = _all(PAIR_KINDS, (2,)) + [Instance("zeros", 3, 2), Instance("zeros", 4, 2)]
    if law == "Sparse":
        return instances
    instances.append(Instance("plain", 3))
    if shape == (2, 1):
        return [*instances, *_all(PAIR_KINDS[2:], (3,)), Instance("plain", 4), *_all([PENALTIES], (2,))]
    return [*instances, Instance("plain", 4)] if siblings is Siblings.RANKED_AND_ONE else instances


def _all(kinds: Sequence[str], vocab_sizes: Sequence[int]) -> list[Instance]:
    return [Instance(kind, vocab_size) for vocab_size in vocab_sizes for kind in kinds]
