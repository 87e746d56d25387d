"""What a mutant is: a wrong twin of a rule, named after the bug that it repeats, with the right rule beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from draftproof.core import Draft, DrawnWith, Law, PointMass
from draftproof.verify.exact import Enumeration, Step, enumerate_steps, speculative_step
from draftproof.verify.proposals import Proposer
from draftproof.verify.tables import Form, LawTable, Table

PROMPT: Final = (0,)

Enumerate: TypeAlias = Callable[[], Enumeration]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A wrong rule on an instance where it shows.

    name: what it does. after: the public report that it repeats, with its number in the regression list (T01..), or
    the design rule that it breaks. wrong: the exact law that it gives. right: the right rule's, on the same
    instance; its total variation must be 0, or the instance proves nothing.
    """

    name: str
    after: str
    wrong: Enumerate
    right: Enumerate


def row(numbers: str) -> tuple[Fraction, ...]:
    """Weights from a string such as "0.3 0.7" or "1/3 2/3"."""
    return tuple(Fraction(number) for number in numbers.split())


def constant(numbers: str, form: Form = "Dense") -> LawTable:
    """A table with the same row after every context."""
    weights = row(numbers)
    return LawTable(len(weights), lambda context: weights, form=form)


def markov(rows: Sequence[str], form: Form = "Dense") -> LawTable:
    """A table whose row depends on the last token: rows[last % len(rows)]."""
    weights = [row(numbers) for numbers in rows]
    return LawTable(len(weights[0]), lambda context: weights[context[-1] % len(weights)], form=form)


def enumerated(step: Step, target: Table, num_passes: int = 1, *, replay: bool = False) -> Enumerate:
    """`enumerate_steps`, put off until it is called."""
    return lambda: enumerate_steps(step, target, num_passes, PROMPT, replay=replay)


def production(name: str, target: Table, drafter: Proposer, num_passes: int = 1) -> Enumerate:
    """The production verifier on the same instance."""
    # Imported here: the registry's package imports nothing of the mutants, and must not be needed to import them.
    from draftproof.verify import get_verifier

    verifier = get_verifier(name)
    replay = verifier.guarantee == "replay"
    return enumerated(speculative_step(verifier, target, drafter), target, num_passes, replay=replay)


def single_token(law: Sequence[Fraction], expected: Sequence[Fraction]) -> Enumeration:
    """A law of one token that was found by other means than replaying paths."""
    return Enumeration(
        {(token_id,): probability for token_id, probability in enumerate(law)},
        {(token_id,): probability for token_id, probability in enumerate(expected)},
        0,
        0,
    )


def forged(
    draft: Draft,
    *,
    laws: Sequence[Law] | None = None,
    token_ids: Sequence[int] | None = None,
    length: int | None = None,
) -> Draft:
    """A chain that claims what isn't so: other laws, other tokens, or a length that it denies having looked for.

    `Draft`'s public interface can't build one; that is what these mutants show to be necessary.
    """
    length = len(draft) if length is None else length
    ids = tuple(draft.token_ids if token_ids is None else token_ids)[:length]
    values = {
        "start": draft.start,
        "token_ids": ids,
        "parents": tuple(range(-1, length - 1)),
        "laws": tuple(draft.laws if laws is None else laws)[:length],
        "depths": tuple(range(length)),
        "drawn_with": DrawnWith.FRESH if length else DrawnWith.NOTHING,
        "anticipating": False,
    }
    lie = object.__new__(Draft)
    for name, value in values.items():
        object.__setattr__(lie, name, value)
    return lie


def claiming_laws(draft: Draft, laws: Sequence[Law]) -> Draft:
    """A tree, the same but for the laws that it claims."""
    lie = object.__new__(Draft)
    for name in Draft.__slots__:
        object.__setattr__(lie, name, tuple(laws) if name == "laws" else getattr(draft, name))
    return lie


def ranked_token_ids(law: Law, vocab_size: int) -> list[int]:
    """Token ids by probability, then by id."""
    return sorted(range(vocab_size), key=lambda token_id: (-law.prob(token_id), token_id))


def one_hot(token_id: int) -> PointMass:
    """The law of a token that is certain."""
    return PointMass(token_id)
