"""The enumerating oracle: every path once, repeated keys repeat, floats are the rationals that they are."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.core import Key, Noise, Purpose
from draftproof.errors import LawError
from draftproof.verify.oracle import EnumeratingOracle
from tests.verify.helpers import exact

FIRST, SECOND = Key(Purpose.COIN, 3, 0), Key(Purpose.COIN, 3, 1)
HALF, THIRD = Fraction(1, 2), Fraction(1, 3)


def _law(program: object) -> dict[object, Fraction]:
    law: dict[object, Fraction] = {}
    for path in EnumeratingOracle().paths(program):  # type: ignore[arg-type]
        law[path.result] = law.get(path.result, Fraction(0)) + path.probability
    return law


def test_every_path_once_with_its_probability() -> None:
    def program(noise: Noise) -> tuple[int, bool]:
        return noise.choice(FIRST, exact("0.5 0 0.5").probs), noise.coin(SECOND, 1, 3)

    assert _law(program) == {
        (0, True): Fraction(1, 6),
        (0, False): THIRD,
        (2, True): Fraction(1, 6),
        (2, False): THIRD,
    }


def test_a_repeated_key_repeats_its_answer() -> None:
    def program(noise: Noise) -> tuple[bool, bool, bool]:
        return noise.coin(FIRST, 1, 2), noise.coin(FIRST, 1, 3), noise.coin(FIRST, 1, 2)

    third = Fraction(1, 3)
    assert _law(program) == {
        (True, True, True): third,
        (True, False, True): HALF - third,
        (False, False, False): HALF,
    }


def test_one_key_under_two_weights_is_one_uniform_number() -> None:
    """The slices of (1/2, 1/2) and (1/3, 2/3) overlap: the joint law is that of one inverse cumulative search."""

    def program(noise: Noise) -> tuple[int, int]:
        return noise.choice(FIRST, exact("1/2 1/2").probs), noise.choice(FIRST, exact("1/3 2/3").probs)

    assert _law(program) == {(0, 0): THIRD, (0, 1): Fraction(1, 6), (1, 1): HALF}


def test_coin_and_choice_of_one_key_share_it() -> None:
    def program(noise: Noise) -> tuple[bool, int]:
        return noise.coin(FIRST, 1, 4), noise.choice(FIRST, exact("1/4 3/4").probs)

    assert _law(program) == {(True, 0): Fraction(1, 4), (False, 1): Fraction(3, 4)}


def test_what_is_given_is_known() -> None:
    oracle = EnumeratingOracle({FIRST: (Fraction(1, 4), Fraction(3, 4))})
    paths = {path.result: path.probability for path in oracle.paths(lambda noise: noise.coin(FIRST, 1, 2))}
    assert paths == {True: HALF, False: HALF}
    assert oracle.asked == {FIRST}


def test_a_coin_is_strict_at_its_ends() -> None:
    assert _law(lambda noise: noise.coin(FIRST, 0, 1)) == {False: 1}
    assert _law(lambda noise: noise.coin(FIRST, 2, 1)) == {True: 1}
    assert _law(lambda noise: noise.coin(FIRST, 0, 0)) == {False: 1}
    assert _law(lambda noise: noise.coin(FIRST, Fraction(1, 9), 0)) == {True: 1}


def test_token_ids_name_the_answers() -> None:
    law = _law(lambda noise: noise.choice(FIRST, exact("0.25 0.75").probs, np.array([4, 9])))
    assert law == {4: Fraction(1, 4), 9: Fraction(3, 4)}


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=5).filter(any))
def test_floats_are_read_as_rationals(values: list[float]) -> None:
    law = _law(lambda noise: noise.choice(FIRST, np.array(values, dtype=np.float32)))
    total = sum(map(Fraction, values))
    assert law == {index: Fraction(value) / total for index, value in enumerate(values) if value}


@pytest.mark.parametrize("weights", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [-1.0, 2.0]])
def test_weights_that_are_no_law(weights: list[float]) -> None:
    with pytest.raises(LawError):
        EnumeratingOracle().choice(FIRST, np.array(weights))


def test_a_program_that_is_not_deterministic_is_found_out() -> None:
    keys = iter([FIRST, SECOND])
    with pytest.raises(RuntimeError, match="deterministic"):
        list(EnumeratingOracle().paths(lambda noise: noise.coin(next(keys), 1, 2)))
