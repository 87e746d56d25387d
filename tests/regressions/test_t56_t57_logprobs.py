"""T56 and T57: log-probabilities of emitted tokens and of the prompt, under every verifier, chain and tree."""

import math

import pytest
import torch

from draftproof import LLM, SamplingParams
from draftproof.verify import VERIFIERS, get_verifier
from draftproof.verify.tables import LawTable
from tests.engine.tables import table
from tests.requests.logprob_checks import (
    CHAIN_VERIFIERS,
    DRAFTERS,
    PROMPT,
    check_t56_emitted,
    check_t57_prompt,
    check_ties,
    llm_of,
)

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("verifier", CHAIN_VERIFIERS)
def test_t56_every_kind_of_token_has_its_own_row(verifier, mode):
    for drafter in ("same law", "other law"):
        check_t56_emitted(drafter, verifier, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_top", [0, 1, 6, 99, -1])
def test_t56_top_of_any_length(mode, num_top):
    for drafter in ("none", "trees"):
        check_t56_emitted(drafter, "keyed", mode, num_top)


def test_t56_the_numbers_of_the_report():
    """Logits [2, 1, 0], emitted 0 and 1: raw -.4076 and -1.4076; at temperature .5 -.1429 and -2.1429."""
    total = sum(math.exp(z) for z in (2, 1, 0))
    target = LawTable(3, lambda context: [math.exp(z) / total for z in (2, 1, 0)], exact=False)
    for mode, first, second in (("raw_logprobs", -0.4076, -1.4076), ("processed_logprobs", -0.1429, -2.1429)):
        output = llm_of("none", mode=mode, target_table=target).generate(
            [[0]], SamplingParams(temperature=0.5, seed=0, max_tokens=30, logprobs=3, detokenize=False)
        )[0]
        entry = output.outputs[0].logprobs[0]
        assert entry.top[0].logprob == pytest.approx(first, abs=1e-4)
        assert entry.top[1].logprob == pytest.approx(second, abs=1e-4)


def test_t56_filters_and_masks_show_in_processed_numbers_alone():
    params = SamplingParams(top_k=2, seed=0, max_tokens=5, logprobs=-1, detokenize=False)
    processed = llm_of("other law", mode="processed_logprobs").generate([PROMPT], params)[0].outputs[0]
    raw = llm_of("other law").generate([PROMPT], params)[0].outputs[0]
    for entry, plain in zip(processed.logprobs, raw.logprobs, strict=True):
        finite = [top for top in entry.top.values() if top.logprob > -math.inf]
        assert len(finite) == 2 and sum(math.exp(top.logprob) for top in finite) == pytest.approx(1)
        assert len([top for top in entry.top.values() if top.rank == 3]) == 4
        assert all(top.logprob > -math.inf for top in plain.top.values())


def test_t56_greedy_reports_the_law_it_draws_from():
    params = SamplingParams(temperature=0, max_tokens=6, logprobs=1, detokenize=False)
    processed = llm_of("other law", mode="processed_logprobs").generate([PROMPT], params)[0].outputs[0]
    assert all(entry.own.logprob == 0.0 and entry.own.rank == 1 for entry in processed.logprobs)
    raw = llm_of("other law").generate([PROMPT], params)[0].outputs[0]
    assert all(entry.own.logprob < 0.0 and entry.own.rank == 1 for entry in raw.logprobs)


def test_t56_ties():
    check_ties()


def test_t56_numbers_are_the_same_bits_whatever_shares_the_forward():
    """Speculation on and off, and beside other requests."""
    params = [SamplingParams(seed=s, max_tokens=30, logprobs=4, detokenize=False, min_p=0.01) for s in range(3)]
    plain = llm_of("none").generate([PROMPT] * 3, params)
    for drafter in DRAFTERS:
        for num_slots in (1, 3):
            outputs = llm_of(drafter, num_slots=num_slots).generate([PROMPT] * 3, params)
            for output, other in zip(outputs, plain, strict=True):
                assert output.outputs[0].logprobs == other.outputs[0].logprobs
                assert output.outputs[0].cumulative_logprob == other.outputs[0].cumulative_logprob


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("num_top", [0, 2, -1])
def test_t57_prompt_logprobs(drafter, num_top):
    check_t57_prompt(drafter, num_top)


def test_t57_beside_other_requests_and_with_shared_prefixes():
    """A long prompt whose beginning another request has cached: every token is scored all the same."""
    from draftproof.targets.toy import TableTarget

    prompt = [i * i % 6 for i in range(50)]
    params = SamplingParams(seed=1, max_tokens=4, prompt_logprobs=1, detokenize=False)
    alone = LLM.from_target(TableTarget(table()), None).generate([prompt], params)[0]
    together = LLM.from_target(TableTarget(table(), num_slots=2), None)
    mate = SamplingParams(seed=2, max_tokens=9, detokenize=False)
    for _ in range(2):
        outputs = together.generate([prompt, [*prompt[:40], 1], prompt], [mate, params, params])
        assert outputs[2].prompt_logprobs == alone.prompt_logprobs
        assert outputs[1].prompt_logprobs[:40] == alone.prompt_logprobs[:40]
        assert outputs[0].prompt_logprobs is None


def test_logprobs_of_a_real_forward_do_not_depend_on_the_number_of_rows():
    """The arithmetic is a row's own, in float64."""
    from draftproof.engine.logprobs import raw_rows

    rows = torch.randn(9, 5003, generator=torch.Generator().manual_seed(1))
    together = list(raw_rows(rows, 5000))
    for index in range(9):
        (alone,) = raw_rows(rows[index : index + 1], 5000)
        assert (alone == together[index]).all()
    assert together[0].shape == (5000,)


def test_processed_logits_are_refused_with_what_to_do():
    from draftproof import ParameterError

    with pytest.raises(ParameterError, match="processed_logprobs in place of processed_logits"):
        llm_of("none", mode="processed_logits")
    assert all(get_verifier(name).name == name for name in VERIFIERS)
