"""Bad input: a clear error for the request that has it, and nothing lost of its neighbours."""

import math

import pytest

from draftproof import GenerationFailed, ParameterError, RequestError, SamplingParams
from draftproof.refusals import REFUSED, RENAMED
from draftproof.requests import toy_llm
from draftproof.requests.toy import PROMPT

GOOD = SamplingParams(seed=5, max_tokens=9, logprobs=1)
BAD = {
    "masks that leave no token": ({"allowed_token_ids": [3], "logit_bias": {3: -math.inf}}, "leave at least one token"),
    "an id outside the vocabulary": ({"logit_bias": {99: 1.0}}, r"logit_bias=\[99\]: must be token ids in"),
    "a stop id outside it": ({"stop_token_ids": [8]}, "stop_token_ids"),
    "an invalid regex": ({"structured_outputs": {"regex": "(ab"}}, "Regex parsing error"),
    "an invalid schema": ({"structured_outputs": {"json": {"type": "nothing"}}}, "Unsupported type"),
    "an invalid grammar": ({"structured_outputs": {"grammar": "root ::= ("}}, "grammar"),
    "a grammar that no token begins": ({"structured_outputs": {"choice": ["zzz"]}}, "choice|grammar|token"),
    "only EOS allowed and min_tokens": ({"allowed_token_ids": [0], "min_tokens": 2}, "min_tokens"),
}


@pytest.fixture(scope="module")
def alone():
    return toy_llm(None).generate([PROMPT], GOOD)[0].outputs[0]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("verifier", [None, "keyed"])
def test_a_bad_request_of_a_batch_fails_alone(name, verifier, alone):
    given, message = BAD[name]
    llm = toy_llm(verifier)
    bad = SamplingParams(**{"max_tokens": 9, **given})
    with pytest.raises(GenerationFailed, match=message) as caught:
        llm.generate([PROMPT, PROMPT, PROMPT], [GOOD, bad, GOOD])
    first, second, third = caught.value.outputs
    for output in (first, third):
        assert output.error is None
        assert output.outputs[0].token_ids == alone.token_ids and output.outputs[0].logprobs == alone.logprobs
    assert isinstance(second.error, RequestError) and second.error.request_id == second.request_id
    assert second.outputs[0].finish_reason == "error" and second.prompt_token_ids == PROMPT
    assert not llm.engine.has_unfinished
    assert llm.generate([PROMPT], GOOD)[0].outputs[0].token_ids == alone.token_ids, "the engine goes on"


@pytest.mark.parametrize("name", ["masks that leave no token", "an id outside the vocabulary", "a stop id outside it"])
def test_a_bad_request_by_itself_raises_what_it_is(name):
    given, message = BAD[name]
    with pytest.raises(ParameterError, match=message):
        toy_llm("keyed").generate([PROMPT], SamplingParams(**given))
    with pytest.raises(ParameterError, match=message):
        next(toy_llm("keyed").stream_generate(PROMPT, SamplingParams(**given)))


def test_an_open_stream_survives_a_bad_request(alone):
    llm = toy_llm("keyed")
    stream = llm.stream_generate(PROMPT, GOOD)
    tokens = [next(stream).token_id]
    with pytest.raises(ParameterError):
        llm.generate([PROMPT], SamplingParams(logit_bias={99: 1.0}))
    tokens += [chunk.token_id for chunk in stream if chunk.token_id >= 0]
    assert tuple(tokens) == alone.token_ids


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"multi_modal_data": {"image": 1}}, "describe the media"),
        ({"prompt": "ab", "images": [1]}, "describe the media"),
        ({"text": "ab"}, "text, token ids, or a mapping"),
        (b"ab", "text or token ids"),
        ([1, -2], "prompt_token_ids=-2"),
        ([1, "2"], "prompt_token_ids='2'"),
        ([1, 2.5], "prompt_token_ids=2.5"),
    ],
)
def test_what_is_no_prompt_is_refused(prompt, message):
    llm = toy_llm(None)
    with pytest.raises(ParameterError, match=message):
        llm.stream_generate(prompt, GOOD).__next__()
    with pytest.raises(GenerationFailed) as caught:
        llm.generate([PROMPT, prompt], GOOD)
    assert caught.value.outputs[0].error is None and caught.value.outputs[1].error is not None


def test_prompts_in_the_words_of_vllm(alone):
    llm = toy_llm(None)
    for prompt in (list(PROMPT), {"prompt_token_ids": PROMPT}):
        assert llm.generate(prompt, GOOD)[0].outputs[0].token_ids == alone.token_ids
    text = llm.tokenizer.decode(list(PROMPT))
    assert llm.generate({"prompt": text}, GOOD)[0].prompt_token_ids == llm.generate(text, GOOD)[0].prompt_token_ids


@pytest.mark.parametrize("name", REFUSED)
def test_fields_of_other_engines_say_what_to_do(name):
    neutral, hint = REFUSED[name]
    for value in neutral:
        assert SamplingParams(**{name: value}) == SamplingParams()
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: next(value for value in (True, 2, "x") if value not in neutral)})
    assert caught.value.field == name and hint in str(caught.value) and len(hint) > 10


@pytest.mark.parametrize("name", RENAMED)
def test_other_engines_words_are_answered_with_ours(name):
    with pytest.raises(ParameterError, match="its name here is") as caught:
        SamplingParams(**{name: 1})
    assert RENAMED[name] in str(caught.value)


@pytest.mark.parametrize(("given", "meant"), [("temprature", "temperature"), ("stops", "stop"), ("topk", "top_k")])
def test_misspelt_fields_get_the_nearest_name(given, meant):
    with pytest.raises(ParameterError, match=f"did you mean '{meant}'"):
        SamplingParams.from_dict({given: 1})
