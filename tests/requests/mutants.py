"""Wrong twins of the rules of requests, each named after the bug that it repeats, and the check that must catch it.

A mutant patches one function of the package; its check is one that the package itself passes. A mutant that a check
lets through is a hole in the suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from draftproof.chat import reader
from draftproof.engine import admission, logprobs, step, stop, turn
from draftproof.engine.detokenize import IncrementalDetokenizer
from draftproof.engine.request import Emitted, Request
from draftproof.engine.stop import Stop, StopRules
from draftproof.noise import KeyedNoise
from tests.chat import test_reader
from tests.engine import test_detokenize, test_samples
from tests.engine.test_samples import check_t52_samples
from tests.requests import endings
from tests.requests.logprob_checks import check_t56_emitted, check_t57_prompt, check_ties


@dataclass(frozen=True)
class Mutant:
    """apply: patches with pytest's monkeypatch. check: raises AssertionError if the rule is broken."""

    name: str
    after: str
    apply: Callable
    check: Callable


def _rules_after_the_block(patch):
    """All of the verdict's tokens are kept, and the rules are asked once, at the end."""
    original = Request.commit

    def commit(self, verdict, num_drafted, logprobs, laws):
        push, self_rules = StopRules.push, self.stop_rules
        stops = []

        def late(rules, token_id, count):
            found = push(rules, token_id, count)
            if rules is self_rules:
                stops.append(found)
                return None if len(stops) < len(verdict.token_ids) else next((s for s in stops if s), None)
            return found

        StopRules.push = late
        try:
            return original(self, verdict, num_drafted, logprobs, laws)
        finally:
            StopRules.push = push

    patch.setattr(Request, "commit", commit)


def _length_first(patch):
    original = StopRules.push

    def push(self, token_id, count):
        found = original(self, token_id, count)
        return Stop("length") if found and count >= self.max_output_tokens else found

    patch.setattr(StopRules, "push", push)


def _cut_tokens_counted(patch):
    original = Request.commit

    def commit(self, verdict, num_drafted, logprobs, laws):
        kept = original(self, verdict, num_drafted, logprobs, laws)
        num_cut = verdict.num_accepted - sum(token.from_draft for token in kept)
        if num_drafted and num_cut > 0:
            self.record.num_accepted_draft_tokens += num_cut
            self.record.per_step_accepted[-1] += num_cut
        return kept

    patch.setattr(Request, "commit", commit)


def _stop_in_a_token(patch):
    def find(self, num_new):
        new = self._text.since(len(self._text) - num_new)
        hits = [(new.find(s), -len(s), s) for s in self._stops if s in new]
        return (min(hits)[2], len(self._text) - num_new + min(hits)[0]) if hits else None

    patch.setattr(StopRules, "_find_stop", find)


def _stop_not_cut(patch):
    patch.setattr(stop._Text, "cut", lambda self, length: None)


def _min_tokens_one_early(patch):
    original = StopRules.push
    patch.setattr(StopRules, "push", lambda self, token_id, count: original(self, token_id, count + 1))


def _shown_too_early(patch):
    patch.setattr(StopRules, "_num_held", lambda self: 0)


def _one_more_position(patch):
    original = StopRules.__init__

    def init(self, params, eos_token_ids, num_positions_left, detokenizer):
        original(self, params, eos_token_ids, num_positions_left + 1, detokenizer)

    patch.setattr(StopRules, "__init__", init)


def _logprobs_of_the_next_row(patch):
    original = logprobs.logprobs_of

    def shifted(mode, logits, laws, verdict, vocab_size, num_top):
        rolled = logits.roll(-1, 0) if len(logits) > 1 else logits
        return original(mode, rolled, laws, verdict, vocab_size, num_top)

    patch.setattr(step, "logprobs_of", shifted)


def _logprobs_of_the_first_row(patch):
    original = logprobs.logprobs_of

    def broadcast(mode, logits, laws, verdict, vocab_size, num_top):
        return original(mode, logits[:1].expand_as(logits), laws, verdict, vocab_size, num_top)

    patch.setattr(step, "logprobs_of", broadcast)


def _processed_for_raw(patch):
    original = logprobs.row_values
    patch.setattr(
        logprobs, "row_values", lambda mode, logits, laws, size: original("processed_logprobs", logits, laws, size)
    )


def _zero_logprobs(patch):
    patch.setattr(logprobs, "log_softmax", lambda row: np.zeros_like(row))


def _ranks_count_ties(patch):
    original = logprobs._of_row

    def of_row(values, token_id, num_top):
        entry = original(values, token_id, num_top)
        own = logprobs.Logprob(entry.own.logprob, int((values >= values[token_id]).sum()))
        return logprobs.TokenLogprobs(token_id, own, entry.top)

    patch.setattr(logprobs, "_of_row", of_row)


def _prompt_rows_shifted(patch):
    original = turn.raw_rows
    patch.setattr(turn, "raw_rows", lambda rows, size: original(rows.roll(1, 0), size))


def _one_stream_for_all_samples(patch):
    patch.setattr(admission, "KeyedNoise", lambda seed, sample_index=0: KeyedNoise(seed))


def _seeds_of_32_bits(patch):
    patch.setattr(admission, "KeyedNoise", lambda seed, index=0: KeyedNoise(seed & 0xFFFFFFFF, index))


def _bytes_alone(patch):
    patch.setattr(
        IncrementalDetokenizer, "push", lambda self, token_id: self._tokenizer.decode([token_id], **self._options)
    )


def _half_markers(patch):
    patch.setattr(reader, "_num_held", lambda text, markers: 0)


def _draft_flag_of_all(patch):
    patch.setattr(Emitted, "from_draft", property(lambda self: True))


def _chain(name):
    return lambda: getattr(endings, f"check_{name}")("chain")


def _check_seeds():
    test_samples.test_seeds_of_64_bits_are_kept_whole(2**63)


def _check_characters():
    test_detokenize.test_metaspace_with_byte_fallback_never_splits_a_character()


def _check_reader():
    test_reader.test_half_a_marker_is_never_shown()


MUTANTS = [
    Mutant("stop rules after the whole block", "T36: transformers#47912", _rules_after_the_block, _chain("t36_eos")),
    Mutant("length before EOS", "T37: sglang#31599", _length_first, _chain("t37_length")),
    Mutant("tokens that were cut off are counted", "T38: ik_llama.cpp#2358", _cut_tokens_counted, _chain("t36_eos")),
    Mutant("every token counted as accepted", "T38: sglang#39826", _draft_flag_of_all, _chain("t37_length")),
    Mutant("stop string sought in one token", "T39: transformers 5.24", _stop_in_a_token, _chain("t39_stop_strings")),
    Mutant("stop string left in the text", "T39: cut inside a token", _stop_not_cut, _chain("t39_stop_strings")),
    Mutant("min_tokens one token early", "T27: vllm#32642", _min_tokens_one_early, _chain("t27_min_tokens")),
    Mutant("text shown that is taken back", "T39: increments", _shown_too_early, _chain("t39_stop_strings")),
    Mutant("a position beyond the model's length", "T40: vllm#16087", _one_more_position, _chain("t40_model_length")),
    Mutant("logprobs of the next row", "T56: vllm#34497", _logprobs_of_the_next_row, check_t56_emitted),
    Mutant("logprobs of the block's first row", "T56: vllm#17876", _logprobs_of_the_first_row, check_t56_emitted),
    Mutant("processed logprobs for raw ones", "T56: vllm#33391", _processed_for_raw, check_t56_emitted),
    Mutant("logprobs that are all 0", "T56: llama.cpp#27972", _zero_logprobs, check_t56_emitted),
    Mutant("ranks that count ties", "T56: vllm#7627", _ranks_count_ties, check_ties),
    Mutant("prompt rows shifted by one", "T57: vllm#53488", _prompt_rows_shifted, check_t57_prompt),
    Mutant("one stream for all samples", "T52: verl#6857", _one_stream_for_all_samples, check_t52_samples),
    Mutant("seeds cut to 32 bits", "T50: vllm#6038", _seeds_of_32_bits, _check_seeds),
    Mutant("tokens decoded one by one", "split characters", _bytes_alone, _check_characters),
    Mutant("half a marker shown", "streamed tool calls", _half_markers, _check_reader),
]  # fmt: skip
