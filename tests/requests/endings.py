"""Checks of endings, as functions that tests and mutants share. Each raises AssertionError where a rule is broken.

Every event is put at every offset of a block of four drafts and at the next one's beginning, under every drafter of
`scripted`.
"""

from __future__ import annotations

from draftproof import SamplingParams
from tests.requests.scripted import DRAFTERS, EOS, PROMPT, expected, found, scripted_llm

OFFSETS = range(6)
FILL = [3, 5, 6, 8, 3, 10, 5, 8, 6, 3, 5, 10, 8, 3]


def _script(offset, *event):
    return [*FILL[:offset], *event, *FILL]


def _check(script, drafter, max_model_len=4096, **fields):
    params = SamplingParams(**{"temperature": 0, "max_tokens": 24, **fields})
    llm = scripted_llm(script, drafter, max_model_len=max_model_len)
    output = llm.generate([PROMPT], params)[0]
    assert found(output) == expected(script, params, max_model_len), (script, drafter, fields)
    completion = output.outputs[0]
    # T38: what was cut off is delivered nowhere and counted nowhere.
    assert len(completion.from_draft) == len(completion.outcomes) == len(completion.token_ids)
    if completion.logprobs is not None:
        assert [entry.token_id for entry in completion.logprobs] == list(completion.token_ids)
    record = output.metrics.speculative_decoding
    if record is not None:
        assert record["num_accepted_draft_tokens"] == sum(completion.from_draft)
        total = record["num_spec_tokens"] + record["num_plain_steps"]
        assert total == len(completion.token_ids)
    if drafter not in ("none", "chain", "tree"):
        return
    streamed = list(llm.stream_generate(PROMPT, params))
    assert tuple(chunk.token_id for chunk in streamed[:-1]) == completion.token_ids
    assert "".join(chunk.text for chunk in streamed) == completion.text
    shown = ""
    for chunk in streamed:
        shown += chunk.text
        assert completion.text.startswith(shown), "text was shown that is not in the answer"


def check_t36_eos(drafter):
    """EOS at every offset ends the request there; what was drafted behind it is dropped."""
    for offset in OFFSETS:
        _check(_script(offset, EOS, EOS), drafter, logprobs=1)
        _check(_script(offset, EOS), drafter, include_stop_str_in_output=True, skip_special_tokens=False)
        _check(_script(offset, EOS), drafter, ignore_eos=True)
        _check(_script(offset, 2), drafter, stop_token_ids=[2])
        _check(_script(offset, 2), drafter, stop_token_ids=[2], include_stop_str_in_output=True)


def check_t37_length(drafter):
    """max_tokens at every offset; on the last allowed token EOS is "stop", behind it nothing is."""
    for offset in OFFSETS:
        _check(FILL, drafter, max_tokens=offset + 1, logprobs=0)
        for limit in (offset, offset + 1, offset + 2):
            if limit:
                _check(_script(offset, EOS), drafter, max_tokens=limit)
                _check(_script(offset, 2), drafter, max_tokens=limit, stop="b!")


def check_t39_stop_strings(drafter):
    """A stop string across tokens cuts inside one; the rest of the block is never emitted."""
    for offset in OFFSETS:
        for include in (False, True):
            _check(_script(offset, 1, 2), drafter, stop="ab", include_stop_str_in_output=include)
            _check(_script(offset, 1, 7, 2), drafter, stop=["aaab", "abb!"], include_stop_str_in_output=include)
        _check(_script(offset, 1, 9, 2), drafter, stop=["ab!", "b"])
        _check(_script(offset, 8), drafter, stop="é")
        _check(_script(offset, 1, 3, 1, 2), drafter, stop="ab!")


def check_t27_min_tokens(drafter):
    """Before min_tokens nothing ends the output: stop strings wait too. (EOS is masked by the chain: next check.)"""
    for offset in OFFSETS:
        for least in (offset, offset + 1, offset + 2):
            _check(_script(offset, 1, 2, 1, 2), drafter, stop="ab", min_tokens=least)
            _check(_script(offset, 4, 4, 4), drafter, stop=["ab"], min_tokens=least, max_tokens=offset + 3)


def check_t40_model_length(drafter):
    """The model's length ends the request at every offset, and no position beyond it is asked for."""
    for left in range(8, 14):
        _check(FILL, drafter, max_model_len=len(PROMPT) + left, max_tokens=None)
        _check(_script(left - 1, EOS), drafter, max_model_len=len(PROMPT) + left, max_tokens=None)


CHECKS = {
    "T36": check_t36_eos,
    "T37": check_t37_length,
    "T39": check_t39_stop_strings,
    "T27": check_t27_min_tokens,
    "T40": check_t40_model_length,
}
ALL_DRAFTERS = tuple(DRAFTERS)
