"""Parameters that other engines know and that are refused here, each with what to do instead.

A name in REFUSED is taken at the values that change nothing, so that a request written for another engine runs, and
is an error at any other value. A name in RENAMED is an error that gives the name to use. Any other unknown name is an
error that gives the closest field.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from draftproof.errors import ParameterError


class Refusal(NamedTuple):
    """neutral: the values that change nothing. hint: what to do instead, or why it is refused."""

    neutral: tuple[object, ...]
    hint: str


_UNSET: Final = (None,)
_OFF: Final = (None, False)
_NO_BEAMS: Final = "beam search is not sampling: there is no law to keep; set n for several samples and compare them"
_NO_GUIDANCE: Final = (
    "classifier-free guidance mixes the logits of two prompts, and one target pass scores one; put what the negative "
    "prompt says into the prompt"
)
_NO_MEDIA: Final = "targets read token ids alone; describe the media in the prompt's text"
_NO_ENCODER: Final = "targets are decoder-only models; put the encoder's text into the prompt of one"
_ENGINE: Final = "it belongs to the engine, not to a request: give it to LLM(speculative_config=…)"

REFUSED: Final[Mapping[str, Refusal]] = MappingProxyType(
    {
        "best_of": Refusal((None, 1), "set n and choose among the samples by cumulative_logprob"),
        "use_beam_search": Refusal(_OFF, _NO_BEAMS),
        "num_beams": Refusal((None, 1), _NO_BEAMS),
        "num_beam_groups": Refusal((None, 1), _NO_BEAMS),
        "beam_width": Refusal((None, 1), _NO_BEAMS),
        "diversity_penalty": Refusal((None, 0, 0.0), _NO_BEAMS),
        "length_penalty": Refusal((None, 1, 1.0), _NO_BEAMS),
        "early_stopping": Refusal(_OFF, _NO_BEAMS),
        "force_words_ids": Refusal(_UNSET, _NO_BEAMS),
        "guidance_scale": Refusal((None, 1, 1.0), _NO_GUIDANCE),
        "cfg_scale": Refusal((None, 1, 1.0), _NO_GUIDANCE),
        "negative_prompt": Refusal((None, ""), _NO_GUIDANCE),
        "negative_prompt_ids": Refusal(_UNSET, _NO_GUIDANCE),
        "penalty_alpha": Refusal(_UNSET, "contrastive search looks ahead at hidden states, and samples from no law"),
        "echo": Refusal(_OFF, "the result has the prompt and its token ids; ask for prompt_logprobs to score it"),
        "suffix": Refusal((None, ""), "models of this kind read from left to right; write the template of a fill-in "
                          "model into the prompt"),
        "multi_modal_data": Refusal((None, {}), _NO_MEDIA),
        "images": Refusal((None, []), _NO_MEDIA),
        "audio": Refusal(_UNSET, _NO_MEDIA),
        "decoder_input_ids": Refusal(_UNSET, _NO_ENCODER),
        "encoder_prompt": Refusal(_UNSET, _NO_ENCODER),
        "assistant_model": Refusal(_UNSET, _ENGINE),
        "prompt_lookup_num_tokens": Refusal(_UNSET, _ENGINE),
        "num_speculative_tokens": Refusal(_UNSET, _ENGINE),
        "prompt_logprob_token_ids": Refusal(_UNSET, "ask for prompt_logprobs=-1 and pick the ids from the answer"),
        "prompt_logprob_start": Refusal((None, 0), "ask for all of prompt_logprobs and cut the list"),
        "logprob_token_ids": Refusal(_UNSET, "ask for logprobs=-1 and pick the ids from the answer"),
        "flat_logprobs": Refusal(_OFF, "logprobs come as one entry for each token"),
        "spaces_between_special_tokens": Refusal(
            (None, True), "transformers' tokenizers ignore it: text is decoded without spaces of its own; join the "
            "pieces of token_ids yourself",
        ),
        "output_kind": Refusal(_UNSET, "use stream_generate for increments, generate for whole texts"),
        "stream_interval": Refusal(_UNSET, "stream_generate gives every token; join chunks as you like"),
        "extra_args": Refusal((None, {}), "give the fields by their own names"),
        "thinking_token_budget": Refusal(_UNSET, "a budget is a length rule: set max_tokens"),
        "repetition_detection": Refusal(_UNSET, "close the stream when its text repeats"),
        "truncate_prompt_tokens": Refusal(_UNSET, "truncate the prompt before the call"),
        "skip_reading_prefix_cache": Refusal(_UNSET, "a prefix that is shared gives the same law as one that is not"),
        "trace_decode_token_ids": Refusal(_UNSET, "give a trace file to generate"),
    }
)  # fmt: skip

RENAMED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_new_tokens": "max_tokens",
        "guided_decoding": "structured_outputs",
        "guided_json": "structured_outputs, with json",
        "guided_regex": "structured_outputs, with regex",
        "guided_choice": "structured_outputs, with choice",
        "guided_grammar": "structured_outputs, with grammar",
        "guided_whitespace_pattern": "structured_outputs, with whitespace_pattern",
        "response_format": "structured_outputs, with json or json_object",
        "json_schema": "structured_outputs, with json",
        "regex": "structured_outputs, with regex",
        "ebnf": "structured_outputs, with grammar",
        "structural_tag": "structured_outputs, with structural_tag",
        "max_completion_tokens": "max_tokens",
        "max_length": "max_tokens, which counts the output alone",
        "n_predict": "max_tokens",
        "min_new_tokens": "min_tokens",
        "num_return_sequences": "n",
        "temp": "temperature",
        "do_sample": "temperature: 0 is greedy",
        "repeat_penalty": "repetition_penalty",
        "typ_p": "typical_p",
        "typical": "typical_p",
        "nsigma": "top_n_sigma",
        "mirostat_mode": "mirostat",
        "mirostat_ent": "mirostat_tau",
        "mirostat_lr": "mirostat_eta",
        "dry_sequence_breaker": "dry_sequence_breakers, a list",
        "dry_range": "dry_penalty_last_n",
        "logits_processor": "logits_processors",
        "stop_strings": "stop",
        "eos_token_id": "stop_token_ids, which are added to the model's own",
        "bad_words_ids": "bad_words, which are strings",
        "no_stop_trim": "include_stop_str_in_output",
        "top_logprobs": "logprobs",
    }
)


def refuse_unknown(given: Mapping[str, object], known: Sequence[str]) -> None:
    """Raises ParameterError for the first name of `given` that is not in `known` and not at a neutral value."""
    for name, value in given.items():
        if name in known:
            continue
        if name in REFUSED:
            neutral, hint = REFUSED[name]
            if any(value is item or (type(value) is type(item) and value == item) for item in neutral):
                continue
            raise ParameterError(name, value, "left unset", hint)
        raise ParameterError(str(name), value, "a field of SamplingParams", _hint(str(name), known))


def _hint(name: str, known: Sequence[str]) -> str:
    if name in RENAMED:
        return f"its name here is {RENAMED[name]}"
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"the fields are {', '.join(known)}"
