"""Samplers beyond vLLM's in the proof: two passes, exact, and not because they do nothing."""

from collections import defaultdict
from fractions import Fraction

import pytest

from draftproof.params import SamplingParams
from draftproof.verify import get_verifier
from draftproof.verify.chain_settings import SAMPLER_SETTINGS
from draftproof.verify.chain_tables import ChainTable, chain_pair
from draftproof.verify.exact import enumerate_steps, speculative_step
from draftproof.verify.proposals import Ranked, Sampled
from draftproof.verify.tables import Reformed, random_logits

CONTEXTS = [(0,), (0, 0), (0, 1), (0, 1, 1), (0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 0, 1), (0, 0, 0, 0), (0, 1, 0, 1, 0, 0)]


@pytest.mark.parametrize("setting", SAMPLER_SETTINGS)
@pytest.mark.parametrize("verifier", ["keyed", "rejection", "block"])
def test_two_passes_are_exact(setting: str, verifier: str) -> None:
    pair = chain_pair(setting, 2, 3)
    replay = verifier == "keyed"
    shared = [Sampled(Reformed(pair.draft, "Dense"), (1, 1), share_target_field=True)] if replay else []
    for drafter in (Ranked(pair.draft, (1, 1)), Sampled(Reformed(pair.draft, "Dense"), (1, 1)), *shared):
        step = speculative_step(get_verifier(verifier), pair.target, drafter)
        found = enumerate_steps(step, pair.target, 2, replay=replay)
        assert found.max_error == 0
        assert found.num_replay_mismatches == 0 or not replay


@pytest.mark.parametrize("setting", SAMPLER_SETTINGS)
def test_every_setting_changes_the_law(setting: str) -> None:
    logits = random_logits(2, "1 target")
    plain, table = ChainTable(2, logits, SamplingParams()), chain_pair(setting, 2, 1).target
    assert any(table.probs(context) != plain.probs(context) for context in CONTEXTS)


@pytest.mark.parametrize("setting", ["mirostat 1", "mirostat 2", "processor with a state", "DRY"])
def test_laws_depend_on_more_than_the_last_tokens(setting: str) -> None:
    """The tables' logits depend on two tokens: what else a law depends on is the sampler's memory."""
    table = chain_pair(setting, 2, 1).target
    laws = defaultdict(set)
    reached = [(0,)]
    while reached:
        context = reached.pop()
        laws[context[-2:]].add(table.probs(context))
        if len(context) < 6:
            reached += [(*context, token) for token, prob in enumerate(table.probs(context)) if prob]
    assert sum(len(different) > 1 for different in laws.values()) >= 2


def test_the_expected_law_under_xtc_is_the_mixture_over_coins() -> None:
    params = SamplingParams(xtc_probability=0.25, xtc_threshold=0.2)
    table = ChainTable(3, lambda context: [1.0, 0.5, 0.0], params)
    always = ChainTable(3, lambda context: [1.0, 0.5, 0.0], SamplingParams(xtc_probability=1.0, xtc_threshold=0.2))
    never = ChainTable(3, lambda context: [1.0, 0.5, 0.0], SamplingParams())
    mixed = [
        Fraction(1, 4) * fallen + Fraction(3, 4) * stayed
        for fallen, stayed in zip(always.probs((0,)), never.probs((0,)), strict=True)
    ]
    assert list(table.probs((0,))) == mixed and always.probs((0,)) != never.probs((0,))
