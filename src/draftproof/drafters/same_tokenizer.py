"""Whether two tokenizers give the same ids to the same text: a draft model reads the target's ids."""

from __future__ import annotations

from typing import Any, Final

from draftproof.errors import TokenizerMismatchError

PROBE: Final = (
    "It's 2024-07-15, 3.14159 and 1,000,000: naïve café, Größe, Привет, 你好, こんにちは, 🙂👍🏽.\n\n"
    "def add(a, b):\n    return a + b  # two   spaces,\ttabs\r\n"
    '<div class="x">&amp;</div> {"key": [1, null]} \\u00e9 ﬁ'
)
_ADVICE: Final = "choose a draft model of the target's own family, or the method ngram or suffix"


def check_same_tokenizer(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise TokenizerMismatchError, which says what differs, unless ids mean the same to both.

    Compared: the token at every id of the common range (the ids below the smaller vocabulary's size), the id
    of every token that both know, the tokens of beginning and of unknown text where both have one, and the
    ids of a probe text without special tokens. One may have more ids than the other. The end token may
    differ, as it does between a base model and its chat version: the drafter is never asked for text.
    """
    target_ids: dict[str, int] = target_tokenizer.get_vocab()
    draft_ids: dict[str, int] = draft_tokenizer.get_vocab()
    _compare_vocabularies(target_ids, draft_ids)
    for role in ("bos_token", "unk_token"):
        ours, theirs = getattr(target_tokenizer, role, None), getattr(draft_tokenizer, role, None)
        if ours is not None and theirs is not None and str(ours) != str(theirs):
            raise _mismatch(f"the {role} is {str(ours)!r} for the target and {str(theirs)!r} for the draft model")
    ours = target_tokenizer.encode(PROBE, add_special_tokens=False)
    theirs = draft_tokenizer.encode(PROBE, add_special_tokens=False)
    if ours != theirs:
        where = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
        at = min(len(ours), len(theirs)) if where is None else where
        raise _mismatch(
            f"the same text is split differently: from token {at} on it is {ours[at : at + 6]} for the target and "
            f"{theirs[at : at + 6]} for the draft model"
        )


def _compare_vocabularies(target_ids: dict[str, int], draft_ids: dict[str, int]) -> None:
    target_tokens = {token_id: token for token, token_id in target_ids.items()}
    draft_tokens = {token_id: token for token, token_id in draft_ids.items()}
    common = min(max(target_tokens, default=-1), max(draft_tokens, default=-1)) + 1
    if common == 0:
        raise _mismatch(f"the vocabularies have {len(target_ids)} tokens (target) and {len(draft_ids)} (draft model)")
    wrong = [i for i in range(common) if target_tokens.get(i) != draft_tokens.get(i)]
    if wrong:
        first = wrong[0]
        raise _mismatch(
            f"{len(wrong)} of the {common} common ids stand for different tokens; the first is id {first}: "
            f"{target_tokens.get(first)!r} for the target and {draft_tokens.get(first)!r} for the draft model"
        )
    for token, token_id in target_ids.items():
        if draft_ids.get(token, token_id) != token_id:
            raise _mismatch(
                f"the token {token!r} is id {token_id} for the target and {draft_ids[token]} for the draft model"
            )


def _mismatch(difference: str) -> TokenizerMismatchError:
    return TokenizerMismatchError(f"target and draft model have different tokenizers: {difference}; {_ADVICE}")
