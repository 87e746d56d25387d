"""Ctrl-C in text mode: what was held back for a stop string, or inside a character, is shown at the end."""

import pytest

from draftproof import LLM, GenerationInterrupted, SamplingParams
from draftproof.cli.streaming import stream_answer, style_for
from draftproof.targets.toy import TableTarget
from tests.engine.letters import Letters, Utf8Bytes
from tests.requests.scripted import PROMPT, TEXTS, scripted_llm, scripted_table


class Interrupted:
    """A target that raises KeyboardInterrupt at its `at`-th score."""

    def __init__(self, inner, at):
        self._inner, self._at, self._calls = inner, at, 0

    def score(self, requests):
        self._calls += 1
        if self._calls == self._at:
            raise KeyboardInterrupt
        return self._inner.score(requests)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def interrupted_llm(script, at, tokenizer=None):
    target = Interrupted(TableTarget(scripted_table(script), eos_token_ids=[0]), at)
    return LLM.from_target(target, tokenizer or Letters(TEXTS, specials=[0]))


def answer_of(llm, params, **options):
    shown = []
    answer = stream_answer(llm, PROMPT, params, show=shown.append, **options)
    return answer, "".join(shown)


def test_text_that_waits_for_a_stop_string_is_shown_after_ctrl_c_in_a_pass():
    params = SamplingParams(temperature=0, max_tokens=9, stop="ab!")
    answer, shown = answer_of(interrupted_llm([3, 1, 2, 3], at=3), params)
    assert answer.is_interrupted and answer.token_ids == [3, 1]
    assert shown == "cxa\n" and answer.text == "cxa"
    assert answer.output.outputs[0].finish_reason == "abort" and answer.output.text == "cxa"


def test_text_that_waits_is_shown_after_ctrl_c_between_two_chunks():
    llm = scripted_llm([3, 1, 3, 3], "none")
    shown = []

    def show(text):
        shown.append(text)
        if len(shown) == 2:
            raise KeyboardInterrupt

    params = SamplingParams(temperature=0, max_tokens=9, stop="ab!")
    answer = stream_answer(llm, PROMPT, params, show=show)
    assert answer.is_interrupted and "".join(shown) == "cxa\n"
    assert not llm.engine.has_unfinished, "its slot is free again"


def test_an_incomplete_character_is_shown_as_what_it_is():
    """Byte 5 of the vocabulary of bytes is not a character's beginning, so bytes are scripted through texts."""

    class Bytes(Utf8Bytes):
        def decode(self, token_ids, *, skip_special_tokens=True):
            table = {3: b"c", 5: b"d", 6: b" ", 8: "é".encode()[:1], 10: "é".encode()[1:]}
            return b"".join(table[token_id] for token_id in token_ids).decode(errors="replace")

    params = SamplingParams(temperature=0, max_tokens=9)
    answer, shown = answer_of(interrupted_llm([3, 8, 10, 3], at=3, tokenizer=Bytes()), params)
    assert answer.is_interrupted and shown == "c\ufffd\n"


def test_marks_cover_what_comes_out_at_the_end(capsys):
    import sys

    params = SamplingParams(temperature=0, max_tokens=9, stop="ab!")
    answer, shown = answer_of(interrupted_llm([3, 1, 2, 3], at=3), params, style=style_for(sys.stdout))
    assert answer.text == "cxa" and shown == "cxa\n"


@pytest.mark.parametrize("drafter", ["none", "chain", "tree"])
def test_a_stream_that_is_interrupted_returns_all_samples(drafter):
    llm = scripted_llm([3, 1, 3, 3, 5, 6], drafter, num_slots=2)
    stream = llm.stream_generate(PROMPT, SamplingParams(n=2, max_tokens=9, stop="ab!"))
    next(stream)
    with pytest.raises(GenerationInterrupted) as caught:
        stream.throw(KeyboardInterrupt())
    (output,) = caught.value.outputs
    assert [completion.finish_reason for completion in output.outputs] == ["abort", "abort"]
    assert not llm.engine.has_unfinished
