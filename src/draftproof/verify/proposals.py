"""Drafters for proofs: chains and trees of a given shape, drawn from a table through `Draft`'s public interface."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, final

from draftproof.core import ROOT, Draft, Noise, Siblings
from draftproof.verify.tables import Context, Table

Shape: TypeAlias = tuple[int, ...]
"""Children of every node at each depth: (1, 1, 1) is a chain of three, (2, 1) two chains of two."""
LawKind: TypeAlias = Literal["PointMass", "Dense", "Sparse"]


class Proposer(Protocol):
    """Drafts after a context; the pass starts at position len(context)."""

    def __call__(self, context: Context, noise: Noise) -> Draft: ...


@final
@dataclass(frozen=True, slots=True)
class Sampled:
    """Draws each node from the table's law after the node's path.

    Siblings are independent draws; with share_target_field they are the same draw, made twice.
    """

    table: Table
    shape: Shape
    share_target_field: bool = False

    def __call__(self, context: Context, noise: Noise) -> Draft:
        draft = Draft.empty(len(context))
        for parent in _parents(self.shape):
            law = self.table.law_given(context + path_token_ids(draft, parent), noise)
            draft = draft.draw(law, noise, parent=parent, share_target_field=self.share_target_field)
        return draft


@final
@dataclass(frozen=True, slots=True)
class SampledTree:
    """A tree whose siblings are drawn in one of the ways of `Siblings`, from the table's law after their parent.

    A node has no more children than `Draft.draw_children` can draw. With `Siblings.INDEPENDENT` and branches at the
    context only, these are independent paths.
    """

    table: Table
    shape: Shape
    siblings: Siblings

    def __call__(self, context: Context, noise: Noise) -> Draft:
        draft = Draft.empty(len(context))
        level = [ROOT]
        for num_children in self.shape:
            begin = len(draft)
            for parent in level:
                law = self.table.law_given(context + path_token_ids(draft, parent), noise)
                draft = draft.draw_children(law, noise, num_children, siblings=self.siblings, parent=parent)
            level = list(range(begin, len(draft)))
        return draft


@final
@dataclass(frozen=True, slots=True)
class Ranked:
    """Takes the table's most probable tokens as children, by rank: every node is a point mass.

    A node has no more children than there are tokens.
    """

    table: Table
    shape: Shape

    def __call__(self, context: Context, noise: Noise) -> Draft:
        token_ids: list[int] = []
        parents: list[int] = []
        level: list[tuple[int, Context]] = [(ROOT, context)]
        for num_children in self.shape:
            next_level = []
            for node, path in level:
                probs = self.table.probs(path)
                ranked = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))
                for token_id in ranked[:num_children]:
                    next_level.append((len(token_ids), (*path, token_id)))
                    token_ids.append(token_id)
                    parents.append(node)
            level = next_level
        return Draft.of_token_ids(len(context), token_ids, parents)


@final
@dataclass(frozen=True, slots=True)
class Fixed:
    """The same tokens after every context."""

    shape: Shape
    token_ids: tuple[int, ...]

    def __call__(self, context: Context, noise: Noise) -> Draft:
        return Draft.of_token_ids(len(context), self.token_ids, _parents(self.shape))


def every_fixed(shape: Shape, vocab_size: int) -> Iterator[Fixed]:
    """Every draft of a shape over a vocabulary, duplicate siblings included."""
    for token_ids in itertools.product(range(vocab_size), repeat=len(_parents(shape))):
        yield Fixed(shape, token_ids)


def proposer(table: Table, shape: Shape, kind: LawKind) -> Proposer:
    """`Ranked` for point masses, `Sampled` otherwise; the table's rows must have that form already."""
    return Ranked(table, shape) if kind == "PointMass" else Sampled(table, shape)


def path_token_ids(draft: Draft, node: int) -> Context:
    """Token ids from the root's child down to `node`; () for ROOT."""
    return tuple(draft.token_ids[index] for index in draft.path_to(node))


def _parents(shape: Sequence[int]) -> list[int]:
    parents: list[int] = []
    level = [ROOT]
    for num_children in shape:
        first = len(parents)
        parents.extend(node for node in level for _ in range(num_children))
        level = list(range(first, len(parents)))
    return parents
