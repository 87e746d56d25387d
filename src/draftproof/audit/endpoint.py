"""An OpenAI-compatible completions endpoint under audit, vLLM's extensions used where they are there.

POST {base_url}/completions with the prompt as token ids, so that no tokenizer stands between. Token ids come from
`return_token_ids` (vLLM 0.10.2 and later); an endpoint that doesn't give them is asked for logprobs, whose tokens may
be "token_id:…" strings (`return_tokens_as_token_ids`) or have ids (llama.cpp). One that gives none of these gives
text: paired mode compares characters, and scored mode needs ids. Retries on 429 and 503, as Retry-After says; anything
else that fails ends the run, which keeps what came before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Final

from draftproof import MissingExtraError
from draftproof.audit.dialects import check_dialect, sampling_fields
from draftproof.audit.engine import EngineError, Generation, Refusal, Request
from draftproof.audit.statistics.needs import COMMAND

_BUSY: Final = (429, 503)
_LONGEST_WAIT_S: Final = 60.0


class EndpointEngine:
    """base_url: up to and with /v1. model: its name there; asked of /models, and checked, at the first request.

    concurrency: requests in flight. timeout_s: of one request. num_retries: while the endpoint is busy. wants_ids:
    refuse an endpoint that can't give token ids. keyed: the engine behind it is one whose output is a function of
    position noise. dialect: whose words it takes, see `dialects`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = 8,
        timeout_s: float = 120.0,
        num_retries: int = 5,
        wants_ids: bool = True,
        keyed: bool = False,
        dialect: str = "vllm",
        client: Any = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.name, self.keyed, self.model = f"{base_url} ({model})", keyed, model
        self._concurrency, self._num_retries, self._wants_ids = concurrency, num_retries, wants_ids
        self._sleep, self._checked = sleep, False
        self._dialect, self._needs_logprobs = check_dialect(dialect), False
        self._base = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = client or _httpx().Client(timeout=timeout_s, headers=headers)

    def generate(self, requests: Sequence[Request]) -> list[Generation]:
        self._check_model()
        bodies = [self._body(request) for request in requests]
        if self._concurrency == 1 or len(bodies) == 1:
            return [self._one(body) for body in bodies]
        with ThreadPoolExecutor(min(self._concurrency, len(bodies))) as pool:
            return list(pool.map(self._one, bodies))

    def _check_model(self) -> None:
        if self._checked:
            return
        listed = self._call("GET", "/models", None)
        names = [entry.get("id") for entry in listed.get("data", []) if isinstance(entry, Mapping)]
        if names and self.model not in names:
            raise EngineError(f"{self._base} has no model {self.model!r}; it has {', '.join(map(str, names))}")
        self._checked = True

    def _body(self, request: Request) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(request.prompt_ids), **sampling_fields(request, self._dialect)}
        if request.params.logprobs is not None:
            body["logprobs"] = request.params.logprobs
        if self._dialect != "openai":
            body |= {"return_token_ids": True, "return_tokens_as_token_ids": True}
        return body

    def _one(self, body: Mapping[str, Any]) -> Generation:
        has_logprobs = self._needs_logprobs
        if has_logprobs:
            body = {**body, "logprobs": max(body.get("logprobs", 0), 1)}
        choice = self._choice(body)
        token_ids = _token_ids(choice)
        if token_ids is None and self._wants_ids and not has_logprobs:
            self._needs_logprobs = True
            return self._one(body)
        if token_ids is None:
            if self._wants_ids:
                raise EngineError(
                    f"{self._base} gives no token ids (neither token_ids nor logprobs with ids); "
                    "use paired mode, which compares texts"
                )
            return Generation((), text=str(choice.get("text", "")))
        if token_ids and max(token_ids) >= 1 << 31:
            raise EngineError(f"{self._base} answered the token id {max(token_ids)}")
        return Generation(token_ids, logprobs=_logprobs(choice, len(token_ids)), text=choice.get("text"))

    def _choice(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = self._call("POST", "/completions", body)
        choices = answer.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            raise EngineError(f"{self._base} answered without choices: {str(answer)[:200]}")
        choice: Mapping[str, Any] = choices[0]
        if choice.get("finish_reason") is None:
            raise EngineError(f"{self._base} cut an answer short: it has no finish_reason")
        return choice

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        for attempt in range(self._num_retries + 1):
            try:
                response = self._client.request(method, self._base + path, json=body)
            except Exception as error:
                # The client's own errors: no connection, a timeout, a stream that ended early.
                raise EngineError(f"{self._base} can't be reached: {type(error).__name__}: {error}") from error
            if response.status_code not in _BUSY or attempt == self._num_retries:
                return self._answer(response)
            self._sleep(_wait_s(response.headers.get("retry-after"), attempt))
        raise EngineError(f"{self._base} is busy")

    def _answer(self, response: Any) -> dict[str, Any]:
        text = response.text[:300]
        if response.status_code in (400, 422):
            raise Refusal(f"{self._base} refuses the request: {text}")
        if response.status_code in _BUSY:
            raise EngineError(f"{self._base} stays busy after {self._num_retries} retries: HTTP {response.status_code}")
        if response.status_code != 200:
            raise EngineError(f"{self._base} answered HTTP {response.status_code}: {text}")
        try:
            answer = response.json()
        except ValueError as error:
            raise EngineError(f"{self._base} answered what is no JSON, or was cut short: {text}") from error
        if not isinstance(answer, dict):
            raise EngineError(f"{self._base} answered {type(answer).__name__}, and an object was expected")
        return answer


def check_tokenizer(engine: EndpointEngine, tokenizer: Any, text: str) -> bool:
    """Whether the endpoint's /tokenize could be asked. Raises EngineError if it gives other ids than `tokenizer`."""
    root = engine._base.removesuffix("/v1")
    try:
        asked = {"model": engine.model, "prompt": text, "content": text, "add_special": True}
        response = engine._client.request("POST", root + "/tokenize", json=asked)
        theirs = response.json().get("tokens") if response.status_code == 200 else None
    except Exception:
        return False
    if not isinstance(theirs, list):
        return False
    ours = [int(i) for i in tokenizer(text)["input_ids"]]
    if theirs != ours:
        raise EngineError(f"the endpoint's tokenizer gives {theirs[:8]} for {text!r}, the local one {ours[:8]}")
    return True


def _token_ids(choice: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = choice.get("token_ids")
    if isinstance(given, list):
        return tuple(int(i) for i in given)
    entries = _entries(choice)
    if entries and all(isinstance(entry.get("id"), int) for entry in entries):
        return tuple(entry["id"] for entry in entries)
    tokens = (choice.get("logprobs") or {}).get("tokens")
    prefix = "token_id:"
    if isinstance(tokens, list) and tokens and all(str(token).startswith(prefix) for token in tokens):
        return tuple(int(str(token).removeprefix(prefix)) for token in tokens)
    return None


def _entries(choice: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """logprobs in the form of chat completions, which llama.cpp gives here too."""
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list) or not all(isinstance(entry, Mapping) for entry in content):
        return []
    return list(content)


def _logprobs(choice: Mapping[str, Any], num_tokens: int) -> tuple[float, ...] | None:
    given = [entry.get("logprob") for entry in _entries(choice)] or (choice.get("logprobs") or {}).get("token_logprobs")
    if not isinstance(given, list) or len(given) != num_tokens or any(value is None for value in given):
        return None
    return tuple(float(value) for value in given)


def _wait_s(retry_after: str | None, attempt: int) -> float:
    try:
        return min(float(retry_after or ""), _LONGEST_WAIT_S)
    except ValueError:
        return float(min(2**attempt, _LONGEST_WAIT_S))


def _httpx() -> Any:
    try:
        return import_module("httpx")
    except ImportError:
        raise MissingExtraError("auditing an endpoint", "httpx", COMMAND) from None
