"""A target with a known law and a tokenizer of eight tokens, on which every parameter can be tried.

Token 0 is EOS; the others are letters, a digit and a space. Laws depend on the last two tokens.
"""

from __future__ import annotations

import math
import random
from functools import cache
from typing import Any, Final

from draftproof.drafters import Drafter
from draftproof.llm import LLM
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import Context, LawTable

TOKENS: Final = ("</s>", "a", "b", "c", "ab", "1", "Ġ", "d")
EOS: Final = 0
PROMPT: Final = (1, 2, 3, 1, 2, 3, 1, 2)
"""Repeats itself, so that lookups find drafts."""


@cache
def toy_table(seed: int = 0) -> LawTable:
    """Weights exp(3 normal), a function of the last two tokens; EOS has probability .04. One table for each seed."""

    @cache
    def after(last_two: Context) -> list[float]:
        source = random.Random(f"{seed} {last_two}")
        values = [math.exp(3.0 * source.gauss(0, 1)) for _ in TOKENS]
        values[EOS] = (sum(values) - values[EOS]) / 24
        return [value / sum(values) for value in values]

    return LawTable(len(TOKENS), lambda context: after(context[-2:]), exact=False)


@cache
def toy_tokenizer() -> Any:
    """A byte-level tokenizer of TOKENS, with transformers' interface."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = {token: index for index, token in enumerate(TOKENS)}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(TOKENS[EOS], special=True)])
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=tokenizer, eos_token=TOKENS[EOS], clean_up_tokenization_spaces=False)


def toy_llm(
    verifier: str | None, topology: str = "chain", *, drafter: Drafter | None = None, num_slots: int = 2, **options: Any
) -> LLM:
    """An LLM over the toy target. verifier None decodes plainly; "greedy" is keyed's case of temperature 0.

    drafter: instead of prompt lookup. options: of LLM.from_target.
    """
    target = TableTarget(toy_table(), num_slots=num_slots, eos_token_ids=[EOS])
    if verifier is None:
        return LLM.from_target(target, toy_tokenizer(), **options)
    speculative = {
        "method": "ngram",
        "prompt_lookup_min": 1,
        "num_speculative_tokens": 4,
        "draft_length": "fixed",
        "verifier": "keyed" if verifier == "greedy" else verifier,
        "topology": topology,
    }
    return LLM.from_target(target, toy_tokenizer(), speculative_config=speculative, drafter=drafter, **options)
