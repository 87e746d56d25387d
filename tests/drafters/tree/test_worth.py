"""What is worth expanding is asked once, and again where answers may have changed."""

import numpy as np

from draftproof.drafters.tree.worth import FADING, Worth


def of(*survival):
    return np.array(survival)


def test_nothing_is_known_at_first():
    assert Worth().known(of(1.0)) is None and Worth().known(of(0.0)) == 0


def test_answers_hold_for_likelier_and_for_less_likely_nodes():
    worth = Worth()
    worth.learn(of(0.8, 0.5, 0.3, 0.1), 2)
    worth.learn(of(0.2, 0.15), 0)
    assert worth.known(of(0.9)) == 1 and worth.known(of(0.8, 0.5)) == 2 and worth.known(of(0.9, 0.6, 0.5, 0.3)) == 3
    assert worth.known(of(0.2, 0.2)) == 0 and worth.known(of(0.1)) == 0
    # The first node of a round pays for the round, the others for themselves.
    assert worth.known(of(0.6, 0.5)) is None and worth.known(of(0.9, 0.4, 0.3)) is None


def test_the_last_answer_holds_where_two_contradict_each_other():
    worth = Worth()
    worth.learn(of(0.5), 1)
    worth.learn(of(0.6), 0)
    assert worth.known(of(0.6)) == 0 and worth.known(of(0.61)) == 1
    worth.learn(of(0.4), 1)
    assert worth.known(of(0.4)) == 1 and worth.known(of(0.6)) == 1


def test_each_draft_lets_more_be_asked_again():
    worth = Worth()
    worth.learn(of(0.5), 1)
    worth.learn(of(0.49), 0)
    assert worth.known(of(0.5)) == 1 and worth.known(of(0.49)) == 0
    worth.fade()
    assert worth.known(of(0.5)) is None and worth.known(of(0.49)) is None
    assert worth.known(of(0.5 * (1 + FADING))) == 1 and worth.known(of(0.49 * (1 - FADING))) == 0
