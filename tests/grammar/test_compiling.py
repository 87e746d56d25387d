"""A grammar that takes too long to compile fails its own request; nobody else waits for it, and threads are bounded."""

import threading
import time

import pytest

from draftproof import GenerationFailed, GrammarError
from draftproof.grammar import Grammars, admission
from draftproof.grammar.backend import make_backend
from draftproof.grammar.compiling import Compilations
from draftproof.sampling import resolve
from tests.grammar.bytes_vocabulary import EOS, ByteTokenizer, asking, engine

TOKENIZER = ByteTokenizer()
SOON = 0.05
"""Seconds that a compilation may take here; the slow ones wait for an event that the test sets."""


class SlowBackend:
    """A library in which every regex that begins with "slow" waits for `go`."""

    def __init__(self, inner):
        self.inner, self.go, self.num_compiled, self.error = inner, threading.Event(), 0, None

    def compile(self, params):
        self.num_compiled += 1
        if params.regex is not None and params.regex.startswith("slow"):
            self.go.wait(60)
            if self.error is not None:
                raise self.error
        return self.inner.compile(params)


@pytest.fixture
def backend(monkeypatch):
    made = []

    def make(name, vocabulary):
        made.append(SlowBackend(make_backend(name, vocabulary)))
        return made[-1]

    monkeypatch.setattr(admission, "make_backend", make)
    yield made
    for one in made:
        one.go.set()
    for thread in threading.enumerate():
        if thread.name == "draftproof grammar":
            thread.join(10)


def grammars(seconds=SOON):
    return Grammars(TOKENIZER, TOKENIZER.vocab_size, [EOS], compile_seconds=seconds)


def cursor(made, regex):
    params = asking({"regex": regex})
    return made.cursor(params, resolve(params, TOKENIZER, TOKENIZER.vocab_size, [EOS]))


def wait_until(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_late_grammar_is_an_error_and_is_kept_for_the_next_request(backend):
    made = grammars()
    with pytest.raises(GrammarError, match=r"longer than 0\.05 s"):
        cursor(made, "slow a")
    assert len(made) == 0
    backend[0].go.set()
    wait_until(lambda: len(made) == 1)
    assert cursor(made, "slow a").allows(TOKENIZER.id(b"s"))
    assert backend[0].num_compiled == made.num_compiled == 1


def test_neighbours_are_served_while_a_grammar_is_late(backend):
    made = grammars(seconds=60)
    waiting = threading.Thread(target=lambda: cursor(made, "slow a"))
    waiting.start()
    wait_until(lambda: backend and backend[0].num_compiled == 1)
    assert cursor(made, "b").allows(TOKENIZER.id(b"b"))
    assert waiting.is_alive()
    backend[0].go.set()
    waiting.join(10)
    assert len(made) == 2


def test_one_compilation_serves_all_that_wait_for_it(backend):
    made, found = grammars(seconds=60), []
    threads = [threading.Thread(target=lambda: found.append(cursor(made, "slow a"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: backend and backend[0].num_compiled == 1)
    backend[0].go.set()
    for thread in threads:
        thread.join(10)
    assert len(found) == 3 and backend[0].num_compiled == 1


def test_there_are_never_more_than_so_many_late_ones(backend):
    made = grammars()
    for regex in ("slow a", "slow b"):
        with pytest.raises(GrammarError, match="longer than"):
            cursor(made, regex)
    with pytest.raises(GrammarError, match="2 grammars are still being compiled"):
        cursor(made, "c")
    with pytest.raises(GrammarError, match="longer than"):
        cursor(made, "slow a")
    assert backend[0].num_compiled == 2
    backend[0].go.set()
    wait_until(lambda: len(made) == 2)
    assert cursor(made, "c").allows(TOKENIZER.id(b"c"))


def test_what_fails_late_leaves_nothing_behind(backend):
    made = grammars()
    with pytest.raises(GrammarError, match="longer than"):
        cursor(made, "slow a")
    backend[0].error = GrammarError("no such grammar")
    backend[0].go.set()
    wait_until(lambda: not made._compilations._running)
    assert len(made) == 0 and not made._compilations._late
    with pytest.raises(GrammarError, match="no such grammar"):
        cursor(made, "slow a")


def test_the_first_mask_is_part_of_what_is_waited_for():
    """llguidance puts its work off until then: (a{1000}){1000} compiles in 6 ms and its first mask takes seconds."""
    go = threading.Event()

    class Late:
        def matcher(self):
            return self

        def fill(self, bits):
            assert bits.shape == (1, 9)
            go.wait(60)

    kept = []
    compilations = Compilations(lambda key, compiled: kept.append(key), seconds=SOON)
    with pytest.raises(GrammarError, match="longer than"):
        compilations.result("key", lambda key: Late(), 270)
    assert kept == []
    go.set()
    wait_until(lambda: kept == ["key"])


def test_through_the_engine_the_other_requests_are_served(backend, monkeypatch):
    llm = engine(TOKENIZER, method="ngram")
    monkeypatch.setattr(llm.admission, "_grammars", grammars())
    prompts = [TOKENIZER.ids("ab")] * 3
    params = [asking({"regex": "a{3}"}), asking({"regex": "slow"}), asking({"regex": "b{2}"})]
    with pytest.raises(GenerationFailed) as failed:
        llm.generate(prompts, params)
    outputs = failed.value.outputs
    assert [output.error is None for output in outputs] == [True, False, True]
    assert "takes longer than" in str(outputs[1].error)
    assert [outputs[0].outputs[0].text, outputs[2].outputs[0].text] == ["aaa", "bb"]
