"""`bench acceptance` and its speed on a table: figures add up, batches change nothing, another text is noticed."""

import math
from collections import Counter

import pytest

from draftproof import LLM, SamplingParams
from draftproof.bench.acceptance import Decoded, decode, figures, seeded
from draftproof.bench.ratio import ratio
from draftproof.bench.speed import Timed, time_both, with_speed
from draftproof.bench.trees import Prompt
from draftproof.config import SpeculativeConfig
from draftproof.drafters import make_drafter
from draftproof.errors import DraftproofError
from draftproof.targets.toy import TableTarget
from tests.bench.test_trees import Numbers
from tests.drafters.tree.tables import uneven_table

PROMPTS = [Prompt("low", "1 2 1 2 1"), Prompt("high", "4 5 4 5"), Prompt("high", "3 3 3")]
PARAMS = SamplingParams(seed=5, max_tokens=40, detokenize=False)
CONFIG = SpeculativeConfig(method="suffix", num_speculative_tokens=4, draft_length="fixed", prompt_lookup_min=1)


def _plain(num_slots=1):
    return LLM.from_target(TableTarget(uneven_table(6, 2), num_slots=num_slots), Numbers())


def _decoded(num_slots):
    plain = _plain(num_slots)
    drafter = make_drafter(CONFIG, plain.target, plain.tokenizer, plain.chain)
    return decode(plain, drafter, CONFIG, PROMPTS, PARAMS)


def test_ratio_by_hand():
    """10 tokens in 5 and 10 in 10 passes: 20 / 15, residuals 10/3 and -10/3."""
    rate, half_width = ratio([(10, 5), (10, 10)])
    assert rate == 20 / 15
    assert half_width == pytest.approx(1.96 * math.sqrt(2 * (10 / 3) ** 2) * math.sqrt(2) / 15)
    assert ratio([(3, 2)]) == (1.5, math.inf)


def test_together_or_one_at_a_time_is_the_same():
    assert _decoded(1) == _decoded(3)


def test_figures_are_what_the_engine_emitted():
    found = _decoded(2)
    plain = _plain()
    for item, prompt, own in zip(found, PROMPTS, seeded(PARAMS, 3), strict=True):
        [output] = plain.generate([Numbers()(prompt.text)["input_ids"]], own)
        assert list(item.token_ids) == list(output.outputs[0].token_ids)
    made = {figure.kind: figure for figure in figures(found, CONFIG, PARAMS)}
    assert set(made) == {"low", "high", "all"} and made["high"].num_prompts == 2
    assert made["all"].tokens_per_pass == 120 / sum(item.num_passes for item in found)
    accepted = sum(number * count for item in found for (_, number), count in item.accepted.items())
    assert accepted > 0
    # Each pass commits its accepted tokens and one more, but for what the limit of 40 cut off.
    assert sum(item.num_passes for item in found) + accepted >= 120


def test_share_by_place():
    """Drafts of 2 with 0, 1 and 2 right, and one of 1 that is right: 3 of 4 at place 0, 1 of 3 at place 1."""
    item = Decoded("a", (0,) * 8, 4, Counter({(2, 0): 1, (2, 1): 1, (2, 2): 1, (1, 1): 1}))
    [figure] = figures([item], CONFIG, PARAMS)
    assert figure.by_place == (0.75, pytest.approx(1 / 3)) and figure.tokens_per_pass == 2.0


def test_speed_is_over_the_same_prompts():
    plain = _plain()
    drafter = make_drafter(CONFIG, plain.target, plain.tokenizer, plain.chain)
    timed = time_both(plain, drafter, CONFIG, PROMPTS, PARAMS)
    assert [item.kind for item in timed] == ["low", "high", "high"] and all(item.plain > 0 for item in timed)
    by_hand = [Timed("low", 2.0, 1.0), Timed("high", 3.0, 1.0), Timed("high", 3.0, 2.0)]
    made = {item.kind: item.speedup for item in with_speed(figures(_decoded(1), CONFIG, PARAMS), by_hand)}
    assert made == {"low": 2.0, "high": 2.0, "all": 2.0}


def test_speed_of_another_text_is_refused(monkeypatch):
    """A decoder that is faster because it says something else."""
    plain = _plain()
    drafter = make_drafter(CONFIG, plain.target, plain.tokenizer, plain.chain)
    other = SamplingParams(seed=99, max_tokens=40, detokenize=False)
    generate = plain.generate
    monkeypatch.setattr(plain, "generate", lambda prompts, params: generate(prompts, other))
    with pytest.raises(DraftproofError, match="gives other tokens"):
        time_both(plain, drafter, CONFIG, PROMPTS, PARAMS)
