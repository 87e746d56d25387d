"""Admission: a prompt and its parameters become requests, or an error that names what can't be honoured.

One request for each of `params.n` samples: they share prompt and seed, and differ in the noise's sample index.
Everything that can be refused is refused here, before the request takes a slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from draftproof.config import SpeculativeConfig
from draftproof.drafters.length import LengthPolicy
from draftproof.drafters.policies import policy_for
from draftproof.drafters.sharpened import chain_power
from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.engine.request import Request
from draftproof.engine.stop import StopRules
from draftproof.errors import GrammarError, ParameterError, PromptError
from draftproof.grammar import GrammarCursor, Grammars
from draftproof.noise import KeyedNoise, fresh_seed
from draftproof.params import SamplingParams
from draftproof.refusals import REFUSED, refuse_unknown
from draftproof.sampling import RowParams, SamplerChain
from draftproof.targets.base import Target
from draftproof.validation import checked_integer
from draftproof.verify import get_verifier

Prompt: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or vLLM's {"prompt": text} or {"prompt_token_ids": ids}."""


@dataclass(slots=True)
class Admission:
    """What a request is admitted to. tokenizer: transformers' interface, or None for token ids alone."""

    target: Target
    tokenizer: Any
    chain: SamplerChain
    speculative: SpeculativeConfig | None
    _policies: dict[str, LengthPolicy] = field(default_factory=dict)
    _grammars: Grammars | None = None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises ParameterError without a tokenizer."""
        if self.tokenizer is None:
            raise ParameterError("prompts", text, "token ids for an LLM without a tokenizer")
        return [int(i) for i in self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]]

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt in any of its forms. Raises ParameterError for what is no prompt."""
        if isinstance(prompt, Mapping):
            (name, value), *others = [*prompt.items()] or [("prompt", None)]
            if others or name not in ("prompt", "prompt_token_ids") or value is None:
                refuse_unknown({key: value for key, value in prompt.items() if key in REFUSED}, ())
                raise ParameterError(
                    "prompt", sorted(prompt), "text, token ids, or a mapping of prompt or prompt_token_ids"
                )
            prompt = value
        if isinstance(prompt, str):
            return self.encode(prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise ParameterError("prompt", prompt, "text or token ids")
        return [checked_integer("prompt_token_ids", token_id, 0) for token_id in prompt]

    def admit(self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams) -> list[Request]:
        """The requests of `params.n` samples, in order of their index.

        With n > 1 their ids are `request_id` with ".0", ".1", … after it. Raises PromptError and ParameterError.
        """
        self._check_prompt(request_id, prompt_ids)
        row_params = self.chain.resolve(params, self.tokenizer, self.target.vocab_size, self.target.eos_token_ids)
        seed = fresh_seed() if params.seed is None else params.seed
        verifier = get_verifier(self.verifier_name(params))
        cursors = [self._grammar(request_id, params, row_params) for _ in range(params.n)]
        most = self.target.max_model_len - len(prompt_ids)
        return [
            Request(
                request_id=request_id if params.n == 1 else f"{request_id}.{index}",
                prompt_ids=tuple(prompt_ids),
                params=params,
                row_params=row_params,
                seed=seed,
                noise=KeyedNoise(seed, index),
                verifier=verifier,
                stop_rules=StopRules(
                    params, self.target.eos_token_ids, most, self._detokenizer(params, prompt_ids)
                ),
                length_policy=self._length_policy(verifier.name),
                history=row_params.first_history(prompt_ids),
                context_ids=list(prompt_ids),
                share_target_noise=self.speculative.share_target_noise if self.speculative else False,
                law_power=chain_power(self.speculative, verifier) if self.speculative else 1.0,
                grammar=cursor,
            )
            for index, cursor in enumerate(cursors)
        ]  # fmt: skip

    def _grammar(self, request_id: str, params: SamplingParams, row_params: RowParams) -> GrammarCursor | None:
        """A cursor at the beginning of what structured_outputs asks for: one for each sample, over one grammar."""
        if params.structured_outputs is None:
            return None
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.target.vocab_size, self.target.eos_token_ids)
        try:
            return self._grammars.cursor(params, row_params)
        except GrammarError as error:
            raise GrammarError(error.message, request_id=request_id) from error

    def verifier_name(self, params: SamplingParams) -> str:
        """The verifier that runs: greedy is keyed's case of temperature 0."""
        name = self.speculative.verifier if self.speculative else "keyed"
        return "greedy" if name == "keyed" and params.is_greedy else name

    def _detokenizer(self, params: SamplingParams, prompt_ids: Sequence[int]) -> IncrementalDetokenizer | None:
        if not params.detokenize:
            return None
        if self.tokenizer is None:
            raise ParameterError("detokenize", True, "False for an LLM without a tokenizer")
        return IncrementalDetokenizer(self.tokenizer, prompt_ids, skip_special_tokens=params.skip_special_tokens)

    def _length_policy(self, verifier_name: str) -> LengthPolicy | None:
        if self.speculative is None:
            return None
        if verifier_name not in self._policies:
            self._policies[verifier_name] = policy_for(self.speculative, get_verifier(verifier_name))
        return self._policies[verifier_name].for_request()

    def _check_prompt(self, request_id: str, prompt_ids: Sequence[int]) -> None:
        most, vocab_size = self.target.max_model_len, self.target.vocab_size
        if not prompt_ids:
            error = (
                "the prompt has no tokens; give at least one (a text that the tokenizer turns into nothing is empty)"
            )
        elif len(prompt_ids) >= most:
            error = (
                f"the prompt has {len(prompt_ids)} tokens and the model reads {most}, of which one must be left "
                "for the output; shorten the prompt or raise max_model_len if the model allows it"
            )
        elif outside := [token_id for token_id in prompt_ids if not 0 <= token_id < vocab_size]:
            error = f"the prompt has token id {outside[0]}; ids run from 0 to {vocab_size - 1}"
        else:
            return
        raise PromptError(error, request_id=request_id)
