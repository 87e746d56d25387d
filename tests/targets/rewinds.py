"""What must hold of a recurrent target's slots, as a function that says what doesn't: for tests, and their mutants."""

import random

import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE

LOGITS = 1e-4
"""Of logits, relative: as in `test_hf.py`, sums in another order, through layers that amplify a difference."""


def wrong_rewinds(target: HFTarget, seed: int = 0, num_passes: int = 10, *, exact: bool, tolerance: float = 0.0):
    """Random passes over slots 0 and 1 together, each with drafts that are taken back in part, beside plain decoding,
    token by token, in slots 2 and 3: where their states or their logits differ, in words.

    exact: bit for bit; else states within `tolerance` of their largest number, and logits within `LOGITS`.
    """
    source, wrong = random.Random(seed), []
    texts = [[source.randrange(VOCAB_SIZE) for _ in range(70)] for _ in range(2)]
    lengths = [5 + seed % 3, 2]
    for slot, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        for place in (slot, slot + 2):
            target.release(place)
            target.prefill(place, text[:length])
    for number in range(num_passes):
        drafts = [source.randrange(6) for _ in range(2)]
        kept = [source.randrange(num + 1) for num in drafts]
        appended = [
            (*text[length : length + 1 + num_kept], *(VOCAB_SIZE - 1 - token for token in range(num - num_kept)))
            for text, length, num, num_kept in zip(texts, lengths, drafts, kept, strict=True)
        ]
        rows = target.score([ScoreRequest(slot, tokens) for slot, tokens in enumerate(appended)])
        for slot, (text, num_kept) in enumerate(zip(texts, kept, strict=True)):
            start = lengths[slot]
            lengths[slot] += 1 + num_kept
            target.rewind(slot, lengths[slot])
            plain = torch.cat(
                [target.score([ScoreRequest(slot + 2, (token,))])[0] for token in text[start : lengths[slot]]]
            )
            where = f"pass {number}, slot {slot}, {num_kept} of {drafts[slot]} kept"
            if _differ(rows[slot][: 1 + num_kept], plain, exact, LOGITS):
                wrong.append(f"logits: {where}")
        if number % 2:
            continue
        for slot in range(2):
            target.rewind(slot + 2, lengths[slot])
            expected = target.recurrent_states(slot + 2)
            for name, state in target.recurrent_states(slot).items():
                if _differ(state, expected[name], exact, tolerance):
                    wrong.append(f"{name}: pass {number}, slot {slot}, {kept[slot]} of {drafts[slot]} kept")
    return wrong


def _differ(found: torch.Tensor, expected: torch.Tensor, exact: bool, tolerance: float) -> bool:
    if exact:
        return not torch.equal(found, expected)
    return not (found - expected).abs().max().item() <= tolerance * max(expected.abs().max().item(), 1.0)
