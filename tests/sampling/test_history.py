"""History: counts kept up to date equal counts made from nothing, and no extension touches its parent."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.sampling import History
from draftproof.sampling.penalties import seen_in_window

IDS = st.lists(st.integers(0, 9), max_size=80)


def counted(history: History) -> tuple[Counter, Counter]:
    ids, prompt_counts, output_counts = history.counts()
    assert len(set(ids.tolist())) == len(ids)
    prompt = Counter({int(i): int(n) for i, n in zip(ids, prompt_counts, strict=True) if n})
    output = Counter({int(i): int(n) for i, n in zip(ids, output_counts, strict=True) if n})
    return prompt, output


@given(prompt=IDS, output=IDS, parts=st.lists(IDS, max_size=4), num=st.integers(0, 200))
@settings(max_examples=150)
def test_extended_equals_built_at_once(prompt: list[int], output: list[int], parts: list[list[int]], num: int) -> None:
    history, tokens = History(prompt, output), list(output)
    for part in parts:
        parent, before = history, (history.output_ids, counted(history))
        history = history.extended(part)
        tokens += part
        assert (parent.output_ids, counted(parent)) == before
    assert history == History(prompt, tokens) and hash(history) == hash(History(prompt, tokens))
    assert history.prompt_ids == tuple(prompt) and history.output_ids == tuple(tokens)
    assert len(history) == len(prompt) + len(tokens) == history.num_prompt_tokens + history.num_output_tokens
    assert counted(history) == (Counter(prompt), Counter(tokens))
    assert history.last(num, prompt=False) == (tuple(tokens[-num:]) if num else ())
    assert history.last(num, prompt=True) == (tuple((prompt + tokens)[-num:]) if num else ())
    for window in (1 + num, None):
        ids, counts = seen_in_window(history, window)
        recent = (prompt + tokens)[-window:] if window else prompt + tokens
        assert Counter(dict(zip(ids.tolist(), counts.tolist(), strict=True))) == Counter(recent)


def test_siblings_do_not_see_each_other() -> None:
    parent = History([1], [2] * 63)
    left, right = parent.extended([3]), parent.extended([4])
    assert left.extended([5]).output_ids[-2:] == (3, 5) and right.output_ids[-1:] == (4,)
    assert counted(left)[1] == Counter({2: 63, 3: 1}) and counted(right)[1] == Counter({2: 63, 4: 1})


def test_counts_survive_thousands_of_short_extensions() -> None:
    tokens = np.random.default_rng(0).integers(0, 500, 3000).tolist()
    history = History([7, 7])
    for start in range(0, 3000, 3):
        history = history.extended(tokens[start : start + 3])
    assert counted(history) == (Counter({7: 2}), Counter(tokens))


def test_ids_beyond_the_vocabulary_are_passed_over() -> None:
    from tests.sampling.rows import probs_of

    assert probs_of([0.0, 1.0], prompt=[5000], output=[1, 9], frequency_penalty=1.0) == [0.5, 0.5]
