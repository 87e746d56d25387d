"""A reduced vocabulary: the tokens that the target samples most often, and how files say so."""

from __future__ import annotations

import torch

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.errors import ParameterError
from draftproof.train.corpus import Corpus
from draftproof.train.target import FrozenTarget


def draft_vocabulary(
    corpus: Corpus, target: FrozenTarget, size: int | None, init_from: str | None = None
) -> torch.Tensor | None:
    """[D] ascending ids of the tokens that the target samples most often, or of those that the drafter in the folder
    `init_from` has; None for the whole vocabulary."""
    if size is None or size == target.vocab_size:
        return None
    if not 1 <= size <= target.vocab_size:
        raise ParameterError("draft_vocab_size", size, f"1 to {target.vocab_size}")
    if init_from is not None and "d2t" in (begun := Checkpoint.locate(init_from)):
        offsets = begun.tensor("d2t")
        if len(offsets) != size:
            raise ParameterError("draft_vocab_size", size, f"{len(offsets)}, as in {init_from}")
        return (offsets + torch.arange(size)).to(target.device)
    counts = torch.from_numpy(corpus.counts(target.vocab_size))
    return counts.argsort(descending=True, stable=True)[:size].sort().values.to(target.device)


def vocabulary_tensors(vocab: torch.Tensor | None, vocab_size: int) -> dict[str, torch.Tensor]:
    """d2t (offsets) and t2d (marks) of a reduced vocabulary; nothing for the whole."""
    if vocab is None:
        return {}
    marked = torch.zeros(vocab_size, dtype=torch.bool, device=vocab.device)
    marked[vocab] = True
    return {"d2t": vocab - torch.arange(len(vocab), device=vocab.device), "t2d": marked}
