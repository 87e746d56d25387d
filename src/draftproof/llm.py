"""LLM: a model, a way to speculate, and `generate`, `chat` and `stream_generate` over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.drafters import Drafter, make_drafter
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.length import FixedLength, LengthPolicy
from draftproof.engine.batch import run
from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.engine.request import Emitted, Request
from draftproof.engine.step import Machinery
from draftproof.engine.stop import StopRules
from draftproof.engine.trace import TraceWriter
from draftproof.errors import ParameterError, PromptError
from draftproof.noise import KeyedNoise, fresh_seed
from draftproof.outputs import GenerationFailed, GenerationInterrupted, RequestOutput, StreamChunk, output_of
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.targets.base import Target
from draftproof.targets.load import load_target
from draftproof.verify import get_verifier

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""
Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A chat: mappings with "role" and "content"."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (requests finished, requests in all)."""


class LLM:
    """A target that decodes plainly or speculatively, with the same law and, by default, the same text.

    model: None for the embedded default model, else a local folder, a GGUF file or a hub name.
    speculative_config: SpeculativeConfig, a mapping of its fields, or None for plain decoding.
    The other keywords are EngineConfig's fields; unknown ones raise ParameterError.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        **engine: Any,
    ) -> None:
        config = EngineConfig.from_mapping({"model": model, **engine})
        speculative = _speculative(speculative_config)
        target, tokenizer = load_target(
            config.model,
            dtype=config.dtype,
            device=config.device,
            num_slots=config.max_num_seqs,
            max_model_len=config.max_model_len,
            invariant=config.invariant,
            width=config.invariant_width,
        )
        self._assemble(target, tokenizer, speculative, config, None)

    @classmethod
    def from_target(
        cls,
        target: Target,
        tokenizer: Any,
        *,
        speculative_config: SpeculativeConfig | Mapping[str, Any] | None = None,
        drafter: Drafter | None = None,
        chain: str = "vllm",
        chain_dtype: str = "float32",
    ) -> LLM:
        """An LLM over a target that is there already.

        target: anything with the Target interface; its slots are used by this LLM alone. tokenizer: transformers'
        interface, or None for prompts and outputs of token ids (detokenize=False). drafter: instead of the one
        that speculative_config names.
        """
        config = EngineConfig(chain=chain, chain_dtype=chain_dtype, max_num_seqs=target.num_slots)
        made = cls.__new__(cls)
        made._assemble(target, tokenizer, _speculative(speculative_config), config, drafter)
        return made

    def _assemble(
        self,
        target: Target,
        tokenizer: Any,
        speculative: SpeculativeConfig | None,
        config: EngineConfig,
        drafter: Drafter | None,
    ) -> None:
        self.config, self.speculative_config = config, speculative
        self.target, self.tokenizer = target, tokenizer
        self.chain = SamplerChain(preset=config.chain, dtype=config.chain_dtype)
        self.drafter: Drafter | None = None
        self._policies: dict[str, LengthPolicy] = {}
        self._request_ids = itertools.count()
        if speculative is None:
            return
        widest = target.room(0)
        if speculative.num_speculative_tokens >= widest:
            raise ParameterError(
                "num_speculative_tokens",
                speculative.num_speculative_tokens,
                f"at most {widest - 1}, one less than this target scores at once",
                "raise invariant_width, in plain runs too, or turn invariant off",
            )
        self.drafter = drafter or make_drafter(speculative, target, tokenizer, self.chain)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: TextIO | str | Path | None = None,
        progress: Progress | None = None,
    ) -> list[RequestOutput]:
        """Completes prompts: text or token ids, one or many. One RequestOutput for each, in order.

        params: one for all, or one for each prompt. trace: a file that gets one JSON line per verified
        position. Raises GenerationFailed if a request failed, after the others have finished, and
        GenerationInterrupted on Ctrl-C; both carry every output in `.outputs`.
        """
        batch: list[Prompt] = [prompts] if _is_one(prompts) else list(prompts)  # type: ignore[list-item, arg-type]
        requests = [self._admit(p, s) for p, s in zip(batch, _per_prompt(params, len(batch)), strict=True)]
        texts = [prompt if isinstance(prompt, str) else None for prompt in batch]
        with _opened(trace) as stream:
            machinery = Machinery(self.target, self.chain, self.drafter, TraceWriter(stream) if stream else None)
            steps = run(machinery, requests)
            try:
                num_finished = 0
                for request, _ in steps:
                    if request.is_finished and progress is not None:
                        num_finished += 1
                        progress(num_finished, len(requests))
            except KeyboardInterrupt:
                steps.close()
                raise GenerationInterrupted(self._outputs(requests, texts)) from None
        outputs = self._outputs(requests, texts)
        if any(output.error is not None for output in outputs):
            raise GenerationFailed(outputs)
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """`generate` on one chat or many, written with the model's chat template."""
        many = [messages] if _is_chat(messages) else list(messages)
        return self.generate([self.encode_chat(chat) for chat in many], params, **options)  # type: ignore[arg-type]

    def stream_generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, trace: TextIO | str | Path | None = None
    ) -> Iterator[StreamChunk]:
        """Yields a StreamChunk for every committed token; the last has finish_reason and the whole output.

        Closing the iterator ends the request and frees its slot. Raises the request's error, after what
        it had emitted was yielded.
        """
        request = self._admit(prompt, params or SamplingParams())
        with _opened(trace) as stream:
            machinery = Machinery(self.target, self.chain, self.drafter, TraceWriter(stream) if stream else None)
            for _, kept in run(machinery, [request]):
                yield from self._chunks(request, kept)
        [output] = self._outputs([request], [prompt if isinstance(prompt, str) else None])
        if request.error is not None:
            raise GenerationFailed([output]) from request.error
        if not request.emitted:
            return
        finish = output.outputs[0].finish_reason
        yield StreamChunk(request.stop_rules.take(final=True), -1, False, None, finish_reason=finish, output=output)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a chat, written with the model's chat template and opened for the model's turn."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ParameterError(
                "messages", "a chat", "given to a model with a chat template", "use generate with plain text"
            )
        text = self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self._encode(text, add_special_tokens=False)

    @property
    def has_chat_template(self) -> bool:
        """True if `chat` works with this model."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def _encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        if self.tokenizer is None:
            raise ParameterError("prompts", text, "token ids for an LLM without a tokenizer")
        return [int(i) for i in self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]]

    def _admit(self, prompt: Prompt, params: SamplingParams) -> Request:
        request_id = f"request-{next(self._request_ids)}"
        prompt_ids = self._encode(prompt) if isinstance(prompt, str) else [int(token_id) for token_id in prompt]
        seed = fresh_seed() if params.seed is None else params.seed
        most = self.target.max_model_len
        row_params = self.chain.resolve(params, self.tokenizer, self.target.vocab_size, self.target.eos_token_ids)
        detokenizer = self._detokenizer(params, prompt_ids)
        request = Request(
            request_id=request_id,
            prompt_ids=tuple(prompt_ids),
            params=params,
            row_params=row_params,
            seed=seed,
            noise=KeyedNoise(seed),
            verifier=get_verifier(self._verifier_name(params)),
            stop_rules=StopRules(params, self.target.eos_token_ids, max(most - len(prompt_ids), 0), detokenizer),
            length_policy=self._length_policy(params),
            history=History(prompt_ids),
            context_ids=list(prompt_ids),
            share_target_noise=self.speculative_config.share_target_noise if self.speculative_config else False,
        )
        error = _prompt_error(prompt_ids, most, self.target.vocab_size)
        if error:
            request.fail(PromptError(error, request_id=request_id))
        return request

    def _detokenizer(self, params: SamplingParams, prompt_ids: Sequence[int]) -> IncrementalDetokenizer | None:
        if not params.detokenize:
            return None
        if self.tokenizer is None:
            raise ParameterError("detokenize", True, "False for an LLM without a tokenizer")
        return IncrementalDetokenizer(self.tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)

    def _verifier_name(self, params: SamplingParams) -> str:
        name = self.speculative_config.verifier if self.speculative_config else "keyed"
        return "greedy" if name == "keyed" and params.is_greedy else name

    def _length_policy(self, params: SamplingParams) -> LengthPolicy | None:
        speculative = self.speculative_config
        if speculative is None:
            return None
        name = self._verifier_name(params)
        if name not in self._policies:
            num_tokens = speculative.num_speculative_tokens
            replays = get_verifier(name).guarantee == "replay"
            self._policies[name] = (
                FixedLength(num_tokens)
                if speculative.draft_length == "fixed"
                else AutoLength(num_tokens, use_clock=replays)
            )
        return self._policies[name].for_request()

    def _chunks(self, request: Request, kept: Sequence[Emitted]) -> Iterator[StreamChunk]:
        # The stop rules have seen the whole run: its text goes out with its last token.
        for index, token in enumerate(kept):
            text = request.stop_rules.take(final=False) if index == len(kept) - 1 else ""
            logprob = token.logprobs.own.logprob if token.logprobs else None
            yield StreamChunk(text, token.token_id, token.from_draft, token.outcome.value, logprob)

    def _outputs(self, requests: Sequence[Request], texts: Sequence[str | None]) -> list[RequestOutput]:
        speculates = self.speculative_config is not None
        return [output_of(request, text, speculates=speculates) for request, text in zip(requests, texts, strict=True)]


def _speculative(given: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
    return given if given is None or isinstance(given, SpeculativeConfig) else SpeculativeConfig.from_mapping(given)


def _prompt_error(prompt_ids: Sequence[int], max_model_len: int, vocab_size: int) -> str | None:
    if not prompt_ids:
        return "the prompt has no tokens; give at least one (a text that the tokenizer turns into nothing is empty too)"
    if len(prompt_ids) >= max_model_len:
        return (
            f"the prompt has {len(prompt_ids)} tokens and the model reads {max_model_len}, of which one must be left "
            "for the output; shorten the prompt or raise max_model_len if the model allows it"
        )
    outside = [token_id for token_id in prompt_ids if not 0 <= token_id < vocab_size]
    if outside:
        return f"the prompt has token id {outside[0]}; ids run from 0 to {vocab_size - 1}"
    return None


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _is_chat(messages: Messages | Sequence[Messages]) -> bool:
    return len(messages) > 0 and isinstance(messages[0], Mapping)


def _per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * num_prompts
    if len(params) != num_prompts:
        raise ParameterError("params", f"{len(params)} of them", f"one, or one for each of the {num_prompts} prompts")
    return list(params)


class _opened:
    """A stream for the trace: the caller's own, or a file opened and closed here."""

    def __init__(self, where: TextIO | str | Path | None) -> None:
        self._own: TextIO | None = None
        self._where = where

    def __enter__(self) -> TextIO | None:
        if isinstance(self._where, (str, Path)):
            try:
                self._own = open(self._where, "w", encoding="utf-8")  # noqa: SIM115
            except OSError as error:
                raise ParameterError("trace", str(self._where), "a file that can be written", str(error)) from error
            return self._own
        return self._where

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()
