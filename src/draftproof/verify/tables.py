"""Tables: prefix-dependent laws over a tiny vocabulary, exact and known, for proofs and tests.

A table maps a context (token ids, prompt included) to a law. `LawTable` holds Fractions from any function of the
context; `random_pair` builds target and draft tables that a proof runs over. Nothing here uses global random state:
a row is a function of (seed, context) alone.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike

from draftproof.core import ROOT, Dense, Draft, Law, Noise, Number, PointMass, Sparse, Weights
from draftproof.errors import ParameterError
from draftproof.verify.oracle import Interval, as_fraction

Context: TypeAlias = tuple[int, ...]
Form: TypeAlias = Literal["PointMass", "Dense", "Sparse", "mixed"]
PairKind: TypeAlias = Literal["plain", "zeros", "ties", "disjoint", "equal", "one-hot", "wide draft"]

PAIR_KINDS: Final[tuple[PairKind, ...]] = ("plain", "zeros", "ties", "disjoint", "equal", "one-hot", "wide draft")


class Table(ABC):
    """A law for every context. `vocab_size` is the number of tokens; rows are cached."""

    vocab_size: int

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < 1:
            raise ParameterError("vocab_size", vocab_size, "1 or more")
        self.vocab_size = vocab_size
        self._laws: dict[Context, Law] = {}
        self._probs: dict[Context, tuple[Fraction, ...]] = {}

    @final
    def law(self, context: Context) -> Law:
        """The law of the token after `context`."""
        found = self._laws.get(context)
        if found is None:
            found = self._laws[context] = self._law(context)
        return found

    @final
    def probs(self, context: Context) -> tuple[Fraction, ...]:
        """[vocab_size] exact probabilities after `context`, which sum to 1."""
        found = self._probs.get(context)
        if found is None:
            law = self.law(context)
            weights = [as_fraction(law.prob(token_id)) for token_id in range(self.vocab_size)]
            total = sum(weights, Fraction(0))
            found = self._probs[context] = tuple(weight / total for weight in weights)
        return found

    def law_given(self, context: Context, noise: Noise) -> Law:
        """The law after `context` given what persists of `noise`, a position's XTC coin; `law` is their mixture."""
        return self.law(context)

    def cases(self, context: Context, coin: Interval) -> list[tuple[Fraction, tuple[Fraction, ...]]]:
        """(probability, exact probabilities) of each law that `law_given` may give, if the coin lies in `coin`."""
        return [(Fraction(1), self.probs(context))]

    def rows(self, context: Context, draft: Draft, noise: Noise) -> list[Law]:
        """The len(draft) + 1 rows that a verifier is given: after the context and after each node."""
        nodes = range(ROOT, len(draft))
        paths = [tuple(draft.token_ids[index] for index in draft.path_to(node)) for node in nodes]
        return [self.law_given(context + path, noise) for path in paths]

    @abstractmethod
    def _law(self, context: Context) -> Law:
        """The law after `context`; called once for each."""


@final
class LawTable(Table):
    """A table from a function: context -> [vocab_size] weights, Fractions, integers or floats.

    form: which Law the rows become. "PointMass" puts all mass on the heaviest token (the lowest id on ties); "Sparse"
    lists positive weights only; "mixed" takes PointMass for rows with one token, else Dense and Sparse by turns.
    exact: rows are normalised Fractions; otherwise arrays of `dtype`, as the function gives them.
    """

    def __init__(
        self,
        vocab_size: int,
        weights: Callable[[Context], Sequence[Number]],
        *,
        form: Form = "Dense",
        exact: bool = True,
        dtype: DTypeLike = np.float64,
    ) -> None:
        super().__init__(vocab_size)
        self._weights, self._form, self._exact, self._dtype = weights, form, exact, dtype

    def _law(self, context: Context) -> Law:
        weights = list(self._weights(context))
        if len(weights) != self.vocab_size:
            raise ParameterError("weights", f"{len(weights)} for context {context}", f"{self.vocab_size} numbers")
        if self._exact:
            total = sum((as_fraction(weight) for weight in weights), Fraction(0))
            if total == 0:
                raise ParameterError("weights", weights, f"positive for some token after context {context}")
            weights = [as_fraction(weight) / total for weight in weights]
        return law_of(weights, self._form_of(context, weights), object if self._exact else self._dtype)

    def _form_of(self, context: Context, weights: Sequence[Number]) -> Form:
        if self._form != "mixed":
            return self._form
        if sum(weight > 0 for weight in weights) == 1:
            return "PointMass"
        return "Sparse" if sum(context) % 2 else "Dense"


def law_of(weights: Sequence[Number], form: Form, dtype: DTypeLike = object) -> Law:
    """[V] weights as a law of the given form (not "mixed")."""
    values: Weights = np.array(weights, dtype=dtype)
    if form == "PointMass":
        return PointMass(max(range(len(weights)), key=lambda token_id: weights[token_id]))
    if form == "Sparse":
        token_ids = np.flatnonzero(values != 0)
        return Sparse(token_ids, values[token_ids])
    return Dense(values)


@dataclass(frozen=True, slots=True)
class Pair:
    """A target table and the table that drafts come from."""

    name: str
    target: Table
    draft: Table


def random_logits(vocab_size: int, seed: str) -> Callable[[Context], list[float]]:
    """Logits in [-2, 2], in eighths, that depend on the last two tokens."""

    def logits(context: Context) -> list[float]:
        source = random.Random(f"{seed} {context[-2:]}")
        return [source.randint(-16, 16) / 8 for _ in range(vocab_size)]

    return logits


class Reformed(Table):
    """A table whose rows are another form of the same law; see `LawTable`."""

    def __init__(self, table: Table, form: Form) -> None:
        super().__init__(table.vocab_size)
        self._table, self._form = table, form

    def _law(self, context: Context) -> Law:
        return law_of(self._table.probs(context), self._form)

    def law_given(self, context: Context, noise: Noise) -> Law:
        given = self._table.law_given(context, noise)
        if given is self._table.law(context):
            return self.law(context)
        return law_of([as_fraction(given.prob(token_id)) for token_id in range(self.vocab_size)], self._form)


def random_pair(kind: PairKind, vocab_size: int, seed: int, *, target_form: Form = "mixed") -> Pair:
    """Random prefix-dependent tables of one kind.

    plain: every weight positive. zeros: some tokens impossible, in both. ties: weights of 1 and 2 only. disjoint: no
    token is possible in both. equal: the draft's table is the target's. one-hot: the target has one token in some
    rows, the draft in others. wide draft: the draft's vocabulary has one token more than the target's.
    """

    def target_weights(context: Context) -> list[int]:
        return _row(kind, vocab_size, f"{seed} {context} target", of_target=True, split=f"{seed} {context}")

    def draft_weights(context: Context) -> list[int]:
        if kind == "equal":
            return target_weights(context)
        width = vocab_size + (kind == "wide draft")
        return _row(kind, width, f"{seed} {context} draft", of_target=False, split=f"{seed} {context}")

    return Pair(
        f"{kind}, V={vocab_size}, seed {seed}",
        LawTable(vocab_size, target_weights, form=target_form),
        LawTable(vocab_size + (kind == "wide draft"), draft_weights),
    )


def _row(kind: PairKind, vocab_size: int, row_seed: str, *, of_target: bool, split: str) -> list[int]:
    source = random.Random(row_seed)
    weights = [source.randint(1, 9) for _ in range(vocab_size)]
    if kind == "ties":
        return [1 + weight % 2 for weight in weights]
    if kind == "zeros":
        kept = source.randrange(vocab_size)
        return [weight if token == kept or source.random() < 0.5 else 0 for token, weight in enumerate(weights)]
    if kind == "disjoint":
        in_target = random.Random(split).sample(range(vocab_size), max(1, vocab_size // 2))
        return [weight if (token in in_target) == of_target else 0 for token, weight in enumerate(weights)]
    if kind == "one-hot" and source.random() < 0.5:
        only = source.randrange(vocab_size)
        return [int(token == only) for token in range(vocab_size)]
    return weights
