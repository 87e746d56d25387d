"""LLM: a model, a way to speculate, and `generate`, `chat` and `stream_generate` over them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from draftproof.chat import Chat, Messages, prepare_chat
from draftproof.config import EngineConfig, SpeculativeConfig
from draftproof.defaults import default_sampling_fields, note_defaults
from draftproof.drafters import Drafter, make_drafter
from draftproof.engine.admission import Admission, Prompt
from draftproof.engine.batch import run
from draftproof.engine.engine import make_engine
from draftproof.engine.request import Emitted, Request
from draftproof.engine.trace import TraceWriter, opened_trace
from draftproof.errors import DraftproofError, ParameterError, PromptError, RequestError
from draftproof.outputs import (
    GenerationFailed,
    GenerationInterrupted,
    Job,
    RequestOutput,
    StreamChunk,
    chunks_of,
    last_chunk_of,
)
from draftproof.params import SamplingParams
from draftproof.sampling import SamplerChain
from draftproof.targets.base import Target
from draftproof.targets.load import load_target
from draftproof.targets.parallel import check_processes, lead

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (requests finished, requests in all)."""


class LLM:
    """A target that decodes plainly or speculatively, with the same law and, by default, the same text.

    model: None for the embedded default model, else a local folder, a GGUF file or a hub name.
    speculative_config: SpeculativeConfig, a mapping of its fields, or None for plain decoding.
    With `tensor_parallel_size` above 1, run the same program in as many processes by torchrun: the first one's LLM is
    made, and the others stay in this call, doing their part of its forwards, until that program ends; then they exit.
    Parameters that a call leaves out (`params` None) are the model's own defaults: `get_default_sampling_params`.
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
        is_cut = config.tensor_parallel_size > 1
        check_processes(config.tensor_parallel_size)
        target, tokenizer = load_target(
            config.model,
            dtype=config.dtype,
            device=config.device,
            num_slots=config.max_num_seqs,
            max_model_len=config.max_model_len,
            invariant=config.invariant,
            width=config.invariant_width,
            max_num_cached_tokens=config.max_num_cached_tokens,
            cache_memory=config.cache_memory,
            sharded=is_cut,
        )
        self._assemble(lead(target) if is_cut else target, tokenizer, speculative, config, None)

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
        logprobs_mode: str = "raw_logprobs",
        max_num_batched_tokens: int = 512,
        max_num_waiting: int = 1024,
        enable_prefix_caching: bool | None = None,
        async_scheduling: bool | None = None,
    ) -> LLM:
        """An LLM over a target that is there already.

        target: anything with the Target interface; its slots are used by one LLM at a time. tokenizer: transformers'
        interface, or None for prompts and outputs of token ids (detokenize=False). drafter: instead of the one
        that speculative_config names. The other keywords are EngineConfig's fields.
        """
        config = EngineConfig(
            chain=chain,
            chain_dtype=chain_dtype,
            max_num_seqs=target.num_slots,
            logprobs_mode=logprobs_mode,
            generation_config="vllm",
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_waiting=max_num_waiting,
            enable_prefix_caching=enable_prefix_caching,
            async_scheduling=async_scheduling,
        )
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
        self._speculates = speculative is not None
        self.target, self.tokenizer = target, tokenizer
        self.chain = SamplerChain(preset=config.chain, dtype=config.chain_dtype)
        self.drafter: Drafter | None = None
        self.admission = Admission(target, tokenizer, self.chain, speculative)
        self.default_fields = default_sampling_fields(
            config.generation_config, config.model or str(getattr(tokenizer, "name_or_path", ""))
        )
        self._request_ids = itertools.count()
        self.engine = make_engine(config, target, self.chain, None)
        if speculative is None:
            return
        widest = target.room(0)
        if speculative.most_drafted >= widest:
            raise ParameterError(
                "num_speculative_tokens" if speculative.topology == "chain" else "num_tree_nodes",
                speculative.most_drafted,
                f"at most {widest - 1}, one less than this target scores at once",
                "raise invariant_width, in plain runs too, or turn invariant off",
            )
        self.drafter = drafter or make_drafter(speculative, target, tokenizer, self.chain)
        self.engine = make_engine(config, target, self.chain, self.drafter)

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
        jobs = [
            self._job(p, s, alone=len(batch) == 1) for p, s in zip(batch, self._per_prompt(params, batch), strict=True)
        ]
        with opened_trace(trace) as writer:
            self._run(jobs, writer, progress)
        outputs = [job.output(speculates=self._speculates) for job in jobs]
        if any(output.error is not None for output in outputs):
            raise GenerationFailed(outputs)
        return outputs

    def chat(
        self,
        messages: Messages | Sequence[Messages],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: TextIO | str | Path | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> list[RequestOutput]:
        """`generate` on one chat or many, written with the model's chat template.

        options: `prepare_chat`'s, such as tools, chat_template_kwargs, tool_parser and reasoning_parser. Each
        completion has a `message`: content, reasoning and tool calls.
        """
        many = [messages] if _is_chat(messages) else list(messages)
        chats = [self.prepare_chat(chat, **options) for chat in many]  # type: ignore[arg-type]
        given = [chat.adjusted(s) for chat, s in zip(chats, self._per_prompt(params, chats), strict=True)]
        prompts: list[Prompt] = [chat.prompt_ids for chat in chats]
        try:
            outputs = self.generate(prompts, given, trace=trace, progress=progress)
        except (GenerationFailed, GenerationInterrupted) as error:
            error.outputs = [chat.read(output) for chat, output in zip(chats, error.outputs, strict=True)]
            raise
        return [chat.read(output) for chat, output in zip(chats, outputs, strict=True)]

    def stream_generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, trace: TextIO | str | Path | None = None
    ) -> Iterator[StreamChunk]:
        """Yields a StreamChunk for every committed token; the last has finish_reason and the whole output.

        With n > 1 the samples' chunks come as they are made, told apart by `index`; each sample's last one has its
        finish_reason, and the very last has the output. Closing the iterator ends the request and frees its slots.
        Raises the request's error, after what it had emitted was yielded, and GenerationInterrupted on Ctrl-C.
        """
        job = self._job(prompt, self._per_prompt(params, [prompt])[0], alone=True)
        num_left = len(job.requests)
        with opened_trace(trace) as writer:
            try:
                for request, kept in self._steps([job], writer):
                    yield from chunks_of(request, kept)
                    if request.is_finished and request.error is None:
                        num_left -= 1
                        yield last_chunk_of(request, None if num_left else job.output(speculates=self._speculates))
            except KeyboardInterrupt:
                for request in job.requests:
                    if not request.is_finished:
                        request.abort()
                raise GenerationInterrupted([job.output(speculates=self._speculates)]) from None
        output = job.output(speculates=self._speculates)
        if output.error is not None:
            raise GenerationFailed([output]) from output.error

    def prepare_chat(self, messages: Messages, **options: Any) -> Chat:
        """A chat's prompt and the way to read the answer; options as in `draftproof.chat.prepare_chat`."""
        return prepare_chat(self.tokenizer, messages, **options)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Token ids of a chat, written with the model's chat template and opened for the model's turn."""
        return self.prepare_chat(messages).prompt_ids

    @property
    def has_chat_template(self) -> bool:
        """True if `chat` works with this model."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def get_default_sampling_params(self, **given: Any) -> SamplingParams:
        """SamplingParams in which what is not given is the model's own default (EngineConfig.generation_config).

        Says on stderr which of vLLM's defaults the model's replace.
        """
        note_defaults({name: value for name, value in self.default_fields.items() if name not in given})
        return SamplingParams(**{**self.default_fields, **given})

    def _job(self, prompt: Prompt, params: SamplingParams, *, alone: bool) -> Job:
        """One prompt's requests. alone: what can't be honoured is raised; otherwise it fails this prompt alone."""
        job = Job(f"request-{next(self._request_ids)}", prompt if isinstance(prompt, str) else None, params)
        try:
            job.prompt_ids = self.admission.prompt_ids(prompt)
            job.requests = self.admission.admit(job.request_id, job.prompt_ids, params)
        except PromptError as error:
            job.error = error
        except DraftproofError as error:
            if alone:
                raise
            if isinstance(error, RequestError):
                job.error = error
            else:
                job.error = RequestError(str(error), request_id=job.request_id)
                job.error.__cause__ = error
        return job

    def _per_prompt(
        self, params: SamplingParams | Sequence[SamplingParams] | None, prompts: Sequence[object]
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [params or self.get_default_sampling_params()] * len(prompts)
        if len(params) != len(prompts):
            raise ParameterError(
                "params", f"{len(params)} of them", f"one, or one for each of the {len(prompts)} prompts"
            )
        return list(params)

    def _run(self, jobs: Sequence[Job], trace: TraceWriter | None, progress: Progress | None) -> None:
        steps = self._steps(jobs, trace)
        num_finished, num_requests = 0, sum(len(job.requests) for job in jobs)
        try:
            for request, _ in steps:
                if request.is_finished and progress is not None:
                    num_finished += 1
                    progress(num_finished, num_requests)
        except KeyboardInterrupt:
            steps.close()
            raise GenerationInterrupted([job.output(speculates=self._speculates) for job in jobs]) from None

    def _steps(
        self, jobs: Sequence[Job], trace: TraceWriter | None
    ) -> Generator[tuple[Request, list[Emitted]], None, None]:
        requests = [request for job in jobs for request in job.requests]
        for request in requests:
            request.trace = trace
        return run(self.engine, requests)


def _speculative(given: SpeculativeConfig | Mapping[str, Any] | None) -> SpeculativeConfig | None:
    return given if given is None or isinstance(given, SpeculativeConfig) else SpeculativeConfig.from_mapping(given)


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and isinstance(prompts[0], int))


def _is_chat(messages: Messages | Sequence[Messages]) -> bool:
    return len(messages) > 0 and isinstance(messages[0], Mapping)
