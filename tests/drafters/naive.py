"""Slow, obvious twins of the n-gram and suffix rules: full scans of the context."""

from collections.abc import Sequence


def ends_of(context_ids: Sequence[int], pattern: Sequence[int]) -> list[int]:
    """Where `pattern` ends in the context, ascending, leaving out an occurrence that nothing follows."""
    size = len(pattern)
    return [
        end
        for end in range(size - 1, len(context_ids) - 1)
        if list(context_ids[end + 1 - size : end + 1]) == list(pattern)
    ]


def ngram_proposal(context_ids: Sequence[int], shortest: int, longest: int, num_tokens: int) -> list[int]:
    """What `NgramDrafter` must propose."""
    for size in range(longest, shortest - 1, -1):
        if size >= len(context_ids):
            continue
        ends = ends_of(context_ids, context_ids[len(context_ids) - size :])
        if ends:
            full = [end for end in ends if end + num_tokens < len(context_ids)]
            end = full[-1] if full else ends[0]
            return list(context_ids[end + 1 : end + 1 + num_tokens])
    return []


def suffix_proposal(
    context_ids: Sequence[int], shortest: int, longest: int, min_token_prob: float, num_tokens: int
) -> list[int]:
    """What `SuffixDrafter` must propose."""
    drafted: list[int] = []
    prob = 1.0
    while len(drafted) < num_tokens:
        text = [*context_ids, *drafted]
        for size in range(min(longest, len(text)), shortest - 1, -1):
            ends = ends_of(context_ids, text[len(text) - size :])
            if ends:
                break
        else:
            return drafted
        followers = [context_ids[end + 1] for end in ends]
        best = max(set(followers), key=lambda token_id: (followers.count(token_id), _last(followers, token_id)))
        prob *= followers.count(best) / len(followers)
        if prob < min_token_prob:
            return drafted
        drafted.append(best)
    return drafted


def _last(items: Sequence[int], item: int) -> int:
    return max(index for index, other in enumerate(items) if other == item)
