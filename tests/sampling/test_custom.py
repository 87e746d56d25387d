"""Custom logits processors: what a row's processor may do, and what ends the row with an error."""

import math

import pytest
import torch

from draftproof.errors import LawError, ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, laws_along, resolve

GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.tensor([[1.0, 0.5, 0.0, -0.5]])


def law_under(*processors: object, logits: torch.Tensor = LOGITS, history: tuple[int, ...] = (0, 1), **fields: object):  # type: ignore[no-untyped-def]
    row = resolve(SamplingParams(logits_processors=processors, **fields), None, logits.shape[1])
    return SamplerChain().laws(logits, row, [row.first_history(history)])[0]


def odds(law, first: int, second: int) -> float:  # type: ignore[no-untyped-def]
    return math.log(law.prob(first) / law.prob(second))


def test_a_processor_sees_prompt_output_and_the_drafts_before_the_row() -> None:
    seen = []

    def look(token_ids, logits):  # type: ignore[no-untyped-def]
        seen.append(token_ids)
        return logits

    row = resolve(SamplingParams(logits_processors=[look]), None, 4)
    history = row.first_history([3, 2]).extended((1,))
    found = laws_along(SamplerChain(), LOGITS.repeat(3, 1), row, history, [0, 2], [-1, -1])
    assert not seen and found[2] is found[2]
    assert set(seen) == {(3, 2, 1, 2)}
    assert len(list(found)) == 3
    assert set(seen) == {(3, 2, 1), (3, 2, 1, 0), (3, 2, 1, 2)}


def test_in_place_and_returned_changes_are_one_thing_and_processors_run_in_order() -> None:
    def in_place(token_ids, logits):  # type: ignore[no-untyped-def]
        logits[0] += 1.0
        return logits

    def doubled(token_ids, logits):  # type: ignore[no-untyped-def]
        return (2 * logits).to(torch.float64)  # another type is taken into the chain's

    kept = LOGITS.clone()
    assert odds(law_under(in_place, doubled), 0, 1) == pytest.approx(3.0)
    assert odds(law_under(doubled, in_place), 0, 1) == pytest.approx(2.0)
    assert torch.equal(LOGITS, kept)


def test_masked_tokens_are_shown_as_masked_and_stay_so() -> None:
    def revive(token_ids, logits):  # type: ignore[no-untyped-def]
        assert logits[2] == -math.inf and logits[3] == -math.inf
        logits[2] = logits[3] = 50.0
        return logits

    law = law_under(revive, logit_bias={2: -math.inf}, allowed_token_ids=[0, 1, 2])
    assert law.prob(2) == law.prob(3) == 0 and odds(law, 0, 1) == pytest.approx(0.5)


def test_penalties_come_after_processors_under_vllm_and_before_them_under_hf() -> None:
    def negated(token_ids, logits):  # type: ignore[no-untyped-def]
        return -logits

    row = resolve(SamplingParams(logits_processors=[negated], repetition_penalty=2.0), None, 4)
    for preset, wanted in (("vllm", -2.0 - -0.5), ("hf", -0.5 - -0.5)):
        [law] = SamplerChain(preset).laws(LOGITS, row, [History([0])])
        assert odds(law, 0, 1) == pytest.approx(wanted)


def fails(token_ids, logits):  # type: ignore[no-untyped-def]
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (fails, "fails failed: KeyError"),
        (lambda token_ids, logits: None, "returned NoneType; must return a tensor of 4 logits"),
        (
            lambda token_ids, logits: logits[:3],
            r"shape \(3,\); must return floats of shape \(4,\)",
        ),
        (lambda token_ids, logits: logits.long(), "returned torch.int64"),
        (lambda token_ids, logits: logits * math.nan, "returned NaN or"),
        (lambda token_ids, logits: logits + math.inf, "NaN or .inf"),
        (lambda token_ids, logits: torch.full_like(logits, -math.inf), "every token is masked"),
        (lambda token_ids, logits: torch.rand(4, generator=GENERATOR), "two calls with the same token ids and logits"),
    ],
)
def test_what_is_no_row_of_logits_is_an_error_of_that_row(processor, message: str) -> None:  # type: ignore[no-untyped-def]
    row, plain = resolve(SamplingParams(logits_processors=[processor]), None, 4), resolve(SamplingParams(), None, 4)
    histories = [History([0]), History([0])]
    found = SamplerChain().laws(LOGITS.repeat(2, 1), [row, plain], histories, errors="return")
    with pytest.raises(LawError, match=message):
        raise found[0]  # type: ignore[misc]
    assert not isinstance(found[1], LawError)


def test_a_state_that_grows_by_calls_is_found_at_the_next_call() -> None:
    class Remembering:
        """Bans what it has seen in any call: right only while no row is rejected."""

        def __init__(self) -> None:
            self.seen: set[int] = set()

        def __call__(self, token_ids, logits):  # type: ignore[no-untyped-def]
            self.seen.update(token_ids)
            logits[list(self.seen)] -= 1.0
            return logits

    row = resolve(SamplingParams(logits_processors=[Remembering()]), None, 4)
    found = laws_along(SamplerChain(), LOGITS.repeat(3, 1), row, History([0]), [1, 2], [0 - 1, 0])
    assert not isinstance(found[0], LawError)
    assert isinstance(found[1], LawError) and "keeps a state of its own" in found[1].message
    # From then on no row is made with it, not even one that would pass the check.
    assert isinstance(laws_along(SamplerChain(), LOGITS, row, History([0]), [], [])[0], LawError)


class Shared:
    """`fork` returns the object itself though `extended` changes it: the branches share one state."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, token_ids, logits):  # type: ignore[no-untyped-def]
        logits[self.tokens] -= 1.0
        return logits

    def fork(self):  # type: ignore[no-untyped-def]
        return self

    def extended(self, token_id: int):  # type: ignore[no-untyped-def]
        self.tokens.append(token_id)
        return self


def test_a_fork_that_is_no_copy_is_found() -> None:
    row = resolve(SamplingParams(logits_processors=[Shared()]), None, 4)
    chain, history = SamplerChain(), row.first_history([0])
    assert not isinstance(laws_along(chain, LOGITS, row, history, [], [])[0], LawError)
    # A row that is made before the state has moved is right; no row after that is made.
    rows = laws_along(chain, LOGITS.repeat(3, 1), row, history, [1, 2], [-1, 0])
    assert not isinstance(rows[0], LawError)
    assert all(isinstance(law, LawError) and "two calls with the same" in law.message for law in rows[1:])
    assert isinstance(laws_along(chain, LOGITS, row, history, [], [])[0], LawError)


def test_states_that_fail_are_errors_of_their_rows() -> None:
    class Failing(Shared):
        def fork(self):  # type: ignore[no-untyped-def]
            return Failing()

        def extended(self, token_id: int):  # type: ignore[no-untyped-def]
            if token_id == 2:
                raise ValueError("no 2")
            return None if token_id == 3 else self

    row = resolve(SamplingParams(logits_processors=[Failing()]), None, 4)
    found = laws_along(SamplerChain(), LOGITS.repeat(5, 1), row, row.first_history([0]), [1, 2, 3, 0], [-1, -1, -1, 1])
    assert [isinstance(law, LawError) for law in found] == [False, False, True, True, True]
    assert "extended: ValueError" in str(found[2]).replace("fork or ", "") and "must return the next" in str(found[3])

    class NoFork(Shared):
        def fork(self):  # type: ignore[no-untyped-def]
            raise OSError("gone")

    row = resolve(SamplingParams(logits_processors=[NoFork()]), None, 4)
    with pytest.raises(ParameterError, match="logits_processors.*fork raised"):
        row.first_history([0])


def test_a_stateful_processor_needs_the_first_history() -> None:
    row = resolve(SamplingParams(logits_processors=[Shared()]), None, 4)
    with pytest.raises(LawError, match="begin with first_history"):
        SamplerChain().laws(LOGITS, row, [History([0])])
