"""Checks of log-probabilities (T56, T57), as functions that tests and mutants share."""

from __future__ import annotations

import math

from draftproof import LLM, SamplingParams
from draftproof.targets.toy import TableTarget
from draftproof.verify import VERIFIERS
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import VOCAB, table

PROMPT = [1, 2, 3, 3, 0]
DRAFTERS = {
    "none": None,
    "same law": lambda: TableDrafter(table(0)),
    "other law": lambda: TableDrafter(table(1)),
    "trees": lambda: TreeDrafter(table(0)),
}


def llm_of(drafter, verifier="keyed", mode="raw_logprobs", target_table=None, tokens=6, num_slots=1):
    target = TableTarget(target_table or table(0), num_slots=num_slots)
    if DRAFTERS[drafter] is None:
        return LLM.from_target(target, None, logprobs_mode=mode)
    config = {"num_speculative_tokens": tokens, "draft_length": "fixed", "verifier": verifier}
    return LLM.from_target(target, None, speculative_config=config, drafter=DRAFTERS[drafter](), logprobs_mode=mode)


def close(left, right):
    return left == right or math.isclose(left, right, rel_tol=1e-5, abs_tol=1e-5)


def check_entry(entry, token_id, numbers, num_top):
    """numbers: [V] what the mode reports for the token's row."""
    assert entry.token_id == token_id
    assert close(entry.own.logprob, numbers[token_id]), (entry, numbers)
    assert entry.own.rank == 1 + sum(number > numbers[token_id] for number in numbers)
    by_number = sorted(range(len(numbers)), key=lambda other: (-numbers[other], other))
    assert list(entry.top) == by_number[: len(numbers) if num_top < 0 else num_top]
    for other, top in entry.top.items():
        assert close(top.logprob, numbers[other])
        assert top.rank == 1 + sum(number > numbers[other] for number in numbers)


def numbers_of(mode, probs, params):
    """What `mode` reports for a row of raw probabilities, by definition. params: temperature and logit_bias alone."""
    raw = [math.log(prob) for prob in probs]
    if mode in ("raw_logprobs", "raw_logits"):
        return raw
    biased = [number + (params.logit_bias or {}).get(i, 0.0) for i, number in enumerate(raw)]
    scaled = [number / params.temperature for number in biased]
    total = math.log(sum(math.exp(number) for number in scaled))
    return [number - total for number in scaled]


def check_t56_emitted(drafter="other law", verifier="keyed", mode="raw_logprobs", num_top=3):
    """Accepted, recovered and bonus tokens: each has the numbers of its own row."""
    target = table(0)
    params = SamplingParams(
        temperature=0.6, logit_bias={2: 0.7}, seed=4, max_tokens=40, logprobs=num_top, detokenize=False
    )
    output = llm_of(drafter, verifier, mode).generate([PROMPT], params)[0].outputs[0]
    assert {"none": {"bonus"}, "other law": {"accepted", "recovered", "bonus"}}.get(drafter, set()) <= set(
        output.outcomes
    )
    assert len(output.logprobs) == len(output.token_ids) == 40
    context = tuple(PROMPT)
    for entry, token_id in zip(output.logprobs, output.token_ids, strict=True):
        numbers = numbers_of(mode, [float(prob) for prob in target.probs(context)], params)
        check_entry(entry, token_id, numbers, num_top)
        context = (*context, token_id)
    assert close(output.cumulative_logprob, sum(entry.own.logprob for entry in output.logprobs))


def check_t57_prompt(drafter="other law", num_top=2):
    """A prompt's log-probabilities are raw, and the same whatever drafts, also where one token is asked for."""
    target = table(0)
    params = SamplingParams(temperature=0.5, top_k=2, seed=1, max_tokens=1, prompt_logprobs=num_top, detokenize=False)
    output = llm_of(drafter).generate([PROMPT], params)[0]
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(PROMPT)
    for place in range(1, len(PROMPT)):
        numbers = [math.log(float(prob)) for prob in target.probs(tuple(PROMPT[:place]))]
        check_entry(output.prompt_logprobs[place], PROMPT[place], numbers, num_top)


def check_ties():
    """Equal numbers share the best rank, and the lowest ids come first (vllm#7627 counted ties as larger)."""
    from draftproof.verify.tables import LawTable

    even = LawTable(VOCAB, lambda context: [0.25, 0.125, 0.25, 0.125, 0.125, 0.125], exact=False)
    params = SamplingParams(seed=3, max_tokens=8, logprobs=4, detokenize=False)
    output = llm_of("none", target_table=even).generate([PROMPT], params)[0].outputs[0]
    for entry in output.logprobs:
        assert list(entry.top) == [0, 2, 1, 3]
        assert [top.rank for top in entry.top.values()] == [1, 1, 3, 3]
        assert entry.own.rank == (1 if entry.token_id in (0, 2) else 3)


CHAIN_VERIFIERS = [name for name in VERIFIERS if name != "greedy"]
