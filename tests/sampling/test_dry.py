"""DRY: repetitions against a naive search, penalties by hand, breakers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.errors import ParameterError
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain, resolve
from draftproof.sampling.dry import repeats


def naive_repeats(tokens: list[int], allowed: int, limit: int) -> dict[int, int]:
    """The longest common suffix, place by place."""
    found: dict[int, int] = {}
    for end in range(len(tokens) - 1):
        length = 0
        while length <= end and length < limit and tokens[end - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        if length >= allowed:
            found[tokens[end + 1]] = max(found.get(tokens[end + 1], 0), length)
    return found if len(tokens) > allowed else {}


@given(
    tokens=st.lists(st.integers(0, 2), min_size=0, max_size=30),
    allowed=st.integers(1, 4),
    limit=st.integers(0, 30),
)
@settings(max_examples=300)
def test_dry_finds_the_longest_repetitions(tokens: list[int], allowed: int, limit: int) -> None:
    ids, lengths = repeats(np.array(tokens, dtype=np.int64), allowed, limit, 1000)
    assert dict(zip(ids.tolist(), lengths.tolist(), strict=True)) == naive_repeats(tokens, allowed, limit)


def test_dry_penalty_grows_with_the_repetition_and_stops_at_breakers() -> None:
    def drops(history: list[int], breakers: list[list[int]], **fields: object) -> list[float]:
        params = SamplingParams(dry_multiplier=1.0, dry_base=2.0, **fields)
        row = resolve(params, None, 6, dry_breaker_ids=breakers)
        probs = SamplerChain(dtype="float64").probs(torch.zeros(1, 6, dtype=torch.float64), row, [History(history)])[0]
        drop = -np.log(probs.numpy())
        return (drop - drop.min()).round(9).tolist()

    repeated = [1, 2, 3, 4, 0, 1, 2, 3]
    assert drops(repeated, []) == [0, 0, 0, 0, 2, 0]
    assert drops(repeated, [[2]]) == [0] * 6
    assert drops(repeated, [[2]], dry_allowed_length=1) == [0, 0, 0, 0, 1, 0]
    assert drops(repeated, [[0, 1]]) == [0, 0, 0, 0, 1, 0]
    assert drops(repeated, [[4]], dry_allowed_length=1) == [0] * 6
    assert drops(repeated, [], dry_penalty_last_n=6) == [0] * 6
    assert drops(repeated, [], dry_penalty_last_n=7) == [0, 0, 0, 0, 1, 0]
    assert drops(repeated, [], dry_penalty_last_n=0) == [0] * 6


def test_dry_cap_keeps_the_penalty_finite() -> None:
    row = resolve(SamplingParams(dry_multiplier=1.0, dry_base=1e9), None, 3, dry_breaker_ids=())
    [law] = SamplerChain().laws(torch.zeros(1, 3), row, [History([1] * 400)])
    assert law.prob(1) == 0 and law.prob(0) == pytest.approx(0.5)


def test_dry_breakers_need_a_tokenizer_or_ids() -> None:
    with pytest.raises(ParameterError, match="dry_sequence_breakers.*empty without a tokenizer"):
        resolve(SamplingParams(dry_multiplier=1.0), None, 8)
    assert resolve(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=[]), None, 8).dry is not None
    with pytest.raises(ParameterError, match="dry_breaker_ids"):
        resolve(SamplingParams(dry_multiplier=1.0), None, 8, dry_breaker_ids=[[]])
    with pytest.raises(ParameterError, match=r"dry_sequence_breakers=\[9\]"):
        resolve(SamplingParams(dry_multiplier=1.0), None, 8, dry_breaker_ids=[[9]])


def test_dry_breakers_cover_every_way_to_write_them(embedded_tokenizer: object) -> None:
    from draftproof.sampling.dry_breakers import breakers_of

    breakers = breakers_of(embedded_tokenizer, ["ab:"], 49152)
    encode = lambda text: embedded_tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    for text in ("ab:", "lab:", "ab:c", "ab"):
        ids = encode(text)
        whole = any(
            ids[i] in breakers and any(tuple(ids[i + 1 : i + 1 + len(tail)]) == tail for tail in breakers[ids[i]])
            for i in range(len(ids))
        )
        assert whole == (":" in text), (text, ids)
