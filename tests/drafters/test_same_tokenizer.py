"""Pairs of tokenizers: what is the same, and what each mismatch says (T64, T65)."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.same_tokenizer import check_same_tokenizer
from draftproof.errors import TokenizerMismatchError
from draftproof.sampling import SamplerChain
from tests.drafters.models import tiny_target

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(merges=(("a", "b"), ("d", "e")), *, extra=(), digits=False, swap=False, **special):
    """A byte-level BPE with two merges; every byte is a token."""
    tokens = [*ALPHABET, *("".join(pair) for pair in merges)]
    if swap:
        tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, list(merges)))
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.add_tokens(list(extra))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def test_equal_tokenizers_pass():
    check_same_tokenizer(byte_level(), byte_level())


def test_one_may_have_more_ids_than_the_other():
    check_same_tokenizer(byte_level(), byte_level(extra=["<tool>", "<end>"]))
    check_same_tokenizer(byte_level(extra=["<tool>", "<end>"]), byte_level())


def test_the_end_token_may_differ_as_in_base_and_chat_models():
    both = ["<bos>", "<eos>", "<turn>"]
    base = byte_level(extra=both, bos_token="<bos>", eos_token="<eos>")
    chat = byte_level(extra=both, bos_token="<bos>", eos_token="<turn>")
    check_same_tokenizer(base, chat)


@pytest.mark.parametrize(
    ("target", "draft", "says"),
    [
        (dict(), dict(swap=True), r"2 of the 258 common ids .* id 256: 'ab' for the target and 'de' for the draft"),
        (
            dict(extra=["<a>", "<b>"], bos_token="<a>"),
            dict(extra=["<a>", "<b>"], bos_token="<b>"),
            "the bos_token is '<a>' for the target and '<b>' for the draft model",
        ),
        (
            dict(merges=(("a", "b"), ("2", "0"))),
            dict(merges=(("a", "b"), ("2", "0")), digits=True),
            r"split differently: from token \d+ on it is",
        ),
        (dict(extra=["<a>", "<b>"]), dict(extra=["<b>"]), r"1 of the 259 common ids"),
    ],
)
def test_a_mismatch_says_what_differs_and_what_to_do(target, draft, says):
    target_tokenizer, draft_tokenizer = byte_level(**target), byte_level(**draft)
    with pytest.raises(TokenizerMismatchError, match=says):
        check_same_tokenizer(target_tokenizer, draft_tokenizer)
    with pytest.raises(TokenizerMismatchError, match="choose a draft model of the target's own family"):
        DraftModelDrafter(
            tiny_target(1), SamplerChain(), target_tokenizer=target_tokenizer, draft_tokenizer=draft_tokenizer
        )
