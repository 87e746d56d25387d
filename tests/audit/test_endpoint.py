"""An OpenAI-compatible endpoint under audit, against a local server that misbehaves in every way that is listed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.audit.endpoint import EndpointEngine, check_tokenizer
from draftproof.audit.engine import EngineError, Refusal, Request
from draftproof.audit.paired import audit_paired
from draftproof.audit.scored import audit_scored
from draftproof.audit.verdict import Verdict
from tests.audit.toys import PROMPTS, TableEngine, table_scorer


class Fake:
    """A server over the table of 8 tokens. `twist` may change the (status, headers, body) of a completion."""

    def __init__(self, twist: Callable[[int, dict[str, Any], dict[str, Any]], Any] | None = None) -> None:
        fake, self.twist, self.num_calls, self.bodies = self, twist, 0, []
        self.lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Nothing on stderr."""

            def do_GET(self) -> None:
                self._send(200, {}, json.dumps({"data": [{"id": "table"}]}))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    self._send(200, {}, json.dumps({"tokens": [ord(c) for c in body["prompt"]]}))
                    return
                with fake.lock:
                    fake.num_calls += 1
                    number = fake.num_calls
                    fake.bodies.append(body)
                answer = fake.answer(body)
                status, headers, text = 200, {}, json.dumps(answer)
                if fake.twist is not None:
                    twisted = fake.twist(number, body, answer)
                    if twisted is not None:
                        status, headers, text = twisted
                self._send(status, headers, text)

            def _send(self, status: int, headers: dict[str, str], text: str) -> None:
                data = text.encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                if "Content-Length" not in headers:
                    self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"])
        ids = TableEngine().output(Request(tuple(body["prompt"]), params, body["seed"]))
        choice = {"text": "".join("abcdefgh"[i] for i in ids), "token_ids": list(ids), "finish_reason": "length"}
        return {"choices": [choice]}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def serve() -> Iterator[Callable[..., Fake]]:
    made: list[Fake] = []

    def start(twist: Any = None) -> Fake:
        made.append(Fake(twist))
        return made[-1]

    yield start
    for fake in made:
        fake.close()


def engine_at(fake: Fake, **options: Any) -> EndpointEngine:
    return EndpointEngine(fake.url, "table", sleep=lambda seconds: None, **options)


def audited(engine: EndpointEngine, num_tokens: int = 1500) -> Any:
    return audit_scored(engine, table_scorer(), PROMPTS, num_tokens=num_tokens, max_tokens=32, batch_size=8)


def test_a_right_endpoint_is_consistent(serve: Callable[..., Fake]) -> None:
    fake = serve()
    audit = audited(engine_at(fake))
    assert audit.verdict is Verdict.CONSISTENT and audit.numbers["tokens"] >= 1500
    assert len({body["seed"] for body in fake.bodies}) == len(fake.bodies)
    assert all(body["return_token_ids"] for body in fake.bodies)


def test_ids_are_read_from_logprobs_too(serve: Callable[..., Fake]) -> None:
    def twist(number: int, body: dict[str, Any], answer: dict[str, Any]) -> Any:
        choice = answer["choices"][0]
        ids = choice.pop("token_ids")
        choice["logprobs"] = {"tokens": [f"token_id:{i}" for i in ids], "token_logprobs": [-1.0] * len(ids)}
        return 200, {}, json.dumps(answer)

    audit = audited(engine_at(serve(twist)), 300)
    assert audit.verdict is Verdict.CONSISTENT and "reported logprobs, largest error, nats" in audit.numbers


def test_ids_are_read_from_the_entries_of_logprobs_too(serve: Callable[..., Fake]) -> None:
    def twist(number: int, body: dict[str, Any], answer: dict[str, Any]) -> Any:
        choice = answer["choices"][0]
        ids = choice.pop("token_ids")
        if "logprobs" in body:
            choice["logprobs"] = {"content": [{"id": i, "token": "?", "logprob": -1.0} for i in ids]}
        return 200, {}, json.dumps(answer)

    fake = serve(twist)
    settings = {"all": SamplingParams(ignore_eos=True, max_tokens=32)}
    audit = audit_scored(
        engine_at(fake, dialect="llama.cpp", concurrency=1), table_scorer(), PROMPTS, settings=settings, num_tokens=300
    )
    assert audit.verdict is Verdict.CONSISTENT and "reported logprobs, largest error, nats" in audit.numbers
    assert "logprobs" not in fake.bodies[0] and all(body["logprobs"] == 1 for body in fake.bodies[1:])
    together = audit_scored(engine_at(serve(twist), dialect="llama.cpp"), table_scorer(), PROMPTS, settings=settings,
                            num_tokens=300)  # fmt: skip
    assert together.verdict is Verdict.CONSISTENT, "requests in flight when the first answer without ids came"


def test_logprobs_are_asked_for_only_where_they_are_needed(serve: Callable[..., Fake]) -> None:
    """An engine that is exact only when they are asked for must not be asked for them."""
    fake = serve()
    audited(engine_at(fake), 300)
    assert not any("logprobs" in body for body in fake.bodies)


@pytest.mark.parametrize(
    ("dialect", "fields"),
    [
        ("vllm", {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.3, "top_p": 1.0, "logit_bias": {"3": 2.0}}),
        (
            "llama.cpp",
            {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.3, "repeat_last_n": 64, "logit_bias": [[3, 2.0]]},
        ),
    ],
)
def test_a_dialect_names_every_sampler_at_its_neutral_value_too(dialect: str, fields: dict[str, Any]) -> None:
    engine = EndpointEngine("http://127.0.0.1:9/v1", "table", client=object(), dialect=dialect)
    params = SamplingParams(repetition_penalty=1.3, logit_bias={3: 2.0}, ignore_eos=True)
    body = engine._body(Request((0,), params, 1))
    assert {name: body[name] for name in fields} == fields


@pytest.mark.parametrize(("dialect", "refused"), [("openai", "top_k"), ("llama.cpp", "min_tokens")])
def test_what_a_dialect_has_no_word_for_is_refused(dialect: str, refused: str) -> None:
    engine = EndpointEngine("http://127.0.0.1:9/v1", "table", client=object(), dialect=dialect)
    ignoring = {"ignore_eos": True} if dialect == "llama.cpp" else {}
    engine._body(Request((0,), SamplingParams(**ignoring), 1))
    with pytest.raises(Refusal, match=f"has no {refused}"):
        engine._body(Request((0,), SamplingParams(**ignoring, **{refused: 3}), 1))
    with pytest.raises(ParameterError, match="dialect"):
        EndpointEngine("http://127.0.0.1:9/v1", "table", client=object(), dialect="other")


def test_llama_cpp_must_be_asked_to_ignore_eos() -> None:
    engine = EndpointEngine("http://127.0.0.1:9/v1", "table", client=object(), dialect="llama.cpp")
    with pytest.raises(Refusal, match="ignore_eos"):
        engine._body(Request((0,), SamplingParams(), 1))


def no_ids(number: int, body: dict[str, Any], answer: dict[str, Any]) -> Any:
    answer["choices"][0].pop("token_ids")
    return 200, {}, json.dumps(answer)


def without_reason(number: int, body: dict[str, Any], answer: dict[str, Any]) -> Any:
    answer["choices"][0]["finish_reason"] = None
    return 200, {}, json.dumps(answer)


@pytest.mark.parametrize(
    ("twist", "words"),
    [
        (no_ids, "gives no token ids"),
        (without_reason, "cut an answer short"),
        (lambda n, b, a: (200, {}, json.dumps(a)[:25]), "cut short"),
        (lambda n, b, a: (200, {"Content-Length": "9999", "Connection": "close"}, json.dumps(a)), "can't be reached"),
        (lambda n, b, a: (200, {}, json.dumps({"choices": []})), "without choices"),
        (lambda n, b, a: (200, {}, "[1]"), "an object was expected"),
        (lambda n, b, a: (500, {}, "out of memory"), "HTTP 500: out of memory"),
        (lambda n, b, a: (429, {"Retry-After": "1"}, "slow down"), "stays busy after 2 retries"),
    ],
    ids=["no ids", "no reason", "half an answer", "truncated stream", "no choices", "no object", "error", "busy"],
)
def test_bad_answers_are_named_and_inconclusive(serve: Callable[..., Fake], twist: Any, words: str) -> None:
    audit = audited(engine_at(serve(twist), num_retries=2, timeout_s=5.0))
    assert audit.verdict is Verdict.INCONCLUSIVE and words in audit.summary


def test_what_came_before_a_failure_is_kept(serve: Callable[..., Fake]) -> None:
    audit = audited(engine_at(serve(lambda n, b, a: (500, {}, "gone") if n > 20 else None), concurrency=1))
    assert audit.verdict is Verdict.INCONCLUSIVE and audit.numbers["tokens"] == 16 * 32


def test_a_busy_endpoint_is_asked_again_as_it_says(serve: Callable[..., Fake]) -> None:
    waits: list[float] = []
    fake = serve(lambda n, b, a: (429, {"Retry-After": "7"}, "slow down") if n % 3 == 1 else None)
    engine = EndpointEngine(fake.url, "table", concurrency=1, sleep=waits.append)
    assert audited(engine, 300).verdict is Verdict.CONSISTENT
    assert waits and set(waits) == {7.0}


def test_a_refused_parameter_is_listed(serve: Callable[..., Fake]) -> None:
    fake = serve(lambda n, b, a: (400, {}, "min_p is not supported") if b["min_p"] else None)
    settings = {"plain": SamplingParams(), "min_p": SamplingParams(min_p=0.1)}
    audit = audit_scored(engine_at(fake), table_scorer(), PROMPTS, settings=settings, num_tokens=300, max_tokens=8)
    assert audit.verdict is Verdict.CONSISTENT and "min_p is not supported" in dict(audit.refused)["min_p"]


def test_down_and_wrong_model(serve: Callable[..., Fake]) -> None:
    fake = serve()
    with pytest.raises(EngineError, match="no model 'other'; it has table"):
        EndpointEngine(fake.url, "other").generate([Request((0,), SamplingParams(), 1)])
    audit = audited(EndpointEngine("http://127.0.0.1:9/v1", "table", timeout_s=2.0))
    assert audit.verdict is Verdict.INCONCLUSIVE and "can't be reached" in audit.summary


def test_another_tokenizer_is_an_error(serve: Callable[..., Fake]) -> None:
    engine = engine_at(serve())
    assert check_tokenizer(engine, lambda text: {"input_ids": [ord(c) for c in text]}, "abc")
    unreachable = EndpointEngine("http://127.0.0.1:9/v1", "table", timeout_s=2.0)
    assert not check_tokenizer(unreachable, lambda text: {"input_ids": [1]}, "abc")
    with pytest.raises(EngineError, match="tokenizer gives"):
        check_tokenizer(engine, lambda text: {"input_ids": [1]}, "abc")


def test_without_ids_paired_mode_is_left(serve: Callable[..., Fake]) -> None:
    one, two = serve(no_ids), serve(no_ids)
    audit = audit_paired(
        engine_at(one, wants_ids=False),
        engine_at(two, wants_ids=False),
        PROMPTS[:2],
        num_samples=16,
        length=3,
        alpha=1e-2,
    )
    assert audit.verdict is Verdict.CONSISTENT and audit.numbers["outputs"] == 64


def test_unknown_parameters_are_refused_before_they_are_sent() -> None:
    engine = EndpointEngine("http://127.0.0.1:9/v1", "table", client=object())
    with pytest.raises(Refusal, match="has no min_tokens|has no "):
        engine._body(Request((0,), SamplingParams(include_stop_str_in_output=True), 1))


def test_the_command_line_compares_tokenizers_first(serve: Callable[..., Fake], capsys: Any) -> None:
    """The fake endpoint's ids are code points."""
    from types import SimpleNamespace

    from draftproof.cli.audit_targets import open_audited

    url, given = serve().url, {"endpoint_model": "table"}
    right = SimpleNamespace(tokenizer=lambda text: {"input_ids": [ord(c) for c in text]})
    assert open_audited(url, given, right).name == f"{url} (table)"  # type: ignore[arg-type]
    wrong = SimpleNamespace(tokenizer=lambda text: {"input_ids": [1]})
    with pytest.raises(ParameterError, match="tokenizer"):
        open_audited(url, given, wrong)  # type: ignore[arg-type]
    down = SimpleNamespace(tokenizer=lambda text: {"input_ids": [1]})
    open_audited("http://127.0.0.1:9/v1", given, down)  # type: ignore[arg-type]
    assert "could not be compared" in capsys.readouterr().err
