"""Mutants: deliberately wrong twins of the rules, each named after the bug that it repeats.

    for record in run_mutants():
        print(record.mutant, record.total_variation, record.caught)

A mutant is caught if the enumeration of its instance gives a law other than the target's, while the right rule on the
same instance gives exactly the target's. A mutant that survives is a hole in the proof. Wrong drafts are forged by a
helper of this package; no public interface can build one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from draftproof.verify.mutants.base import Mutant

__all__ = ["Mutant", "MutantRecord", "all_mutants", "run_mutants"]


@dataclass(frozen=True, slots=True)
class MutantRecord:
    """What became of one mutant.

    mutant, after: see `Mutant`. total_variation: between its law and the target's, an exact fraction as a string;
    total_variation_float: the same, rounded. control: the right rule's total variation on the same instance.
    caught: total_variation > 0 and control is 0.
    """

    mutant: str
    after: str
    total_variation: str
    total_variation_float: float
    control: str
    caught: bool

    def as_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant, in the order of the files. Imports torch, for the mutants of the sampler chain's rows."""
    from draftproof.verify.mutants import (
        blocks,
        claims,
        coins,
        commits,
        lengths,
        paths,
        residuals,
        rows,
        sampler_coins,
        samplers,
        sequences,
        siblings,
        streams,
        traversals,
    )

    return (
        *claims.MUTANTS,
        *residuals.MUTANTS,
        *coins.MUTANTS,
        *commits.MUTANTS,
        *lengths.MUTANTS,
        *blocks.MUTANTS,
        *siblings.MUTANTS,
        *sequences.MUTANTS,
        *traversals.MUTANTS,
        *paths.MUTANTS,
        *streams.MUTANTS,
        *rows.build(),
        *samplers.build(),
        *sampler_coins.build(),
    )


def run_mutants(progress: Callable[[int, int], None] | None = None) -> Iterator[MutantRecord]:
    """Enumerates every mutant and its control; a few seconds in all.

    progress: called with (mutants done, mutants in all) after each.
    """
    mutants = all_mutants()
    for index, mutant in enumerate(mutants):
        wrong, control = mutant.wrong().total_variation, mutant.right().total_variation
        yield MutantRecord(
            mutant.name, mutant.after, str(wrong), float(wrong), str(control), wrong > 0 and control == 0
        )
        if progress is not None:
            progress(index + 1, len(mutants))
