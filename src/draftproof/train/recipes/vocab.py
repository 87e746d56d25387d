"""A reduced vocabulary: the tokens that the target samples most often, and how files say so."""

from __future__ import annotations

import torch

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.errors import ParameterError
from draftproof.train.corpus import Corpus
from draftproof.train.initial import reduced_vocabulary
from draftproof.train.target import FrozenTarget


def draft_vocabulary(
    corpus: Corpus, target: FrozenTarget, size: int | None, init_from: str | None = None
) -> torch.Tensor | None:
    """[D] ascending ids of the tokens that the target samples most often; None for the whole vocabulary.

    The reduced vocabulary of the drafter in the folder `init_from` is kept, and the most frequent other tokens are
    added to it until there are `size`. Raises ParameterError for a smaller size than that.
    """
    if size is None or size == target.vocab_size:
        return None
    if not 1 <= size <= target.vocab_size:
        raise ParameterError("draft_vocab_size", size, f"1 to {target.vocab_size}")
    counts = torch.from_numpy(corpus.counts(target.vocab_size))
    if init_from is not None and (kept := reduced_vocabulary(Checkpoint.locate(init_from))) is not None:
        if size < len(kept):
            raise ParameterError("draft_vocab_size", size, f"{len(kept)} or more, as in {init_from}")
        counts[kept] += int(counts.max()) + 1
    return counts.argsort(descending=True, stable=True)[:size].sort().values.to(target.device)


def vocabulary_tensors(vocab: torch.Tensor | None, vocab_size: int) -> dict[str, torch.Tensor]:
    """d2t (offsets) and t2d (marks) of a reduced vocabulary; nothing for the whole."""
    if vocab is None:
        return {}
    marked = torch.zeros(vocab_size, dtype=torch.bool, device=vocab.device)
    marked[vocab] = True
    return {"d2t": vocab - torch.arange(len(vocab), device=vocab.device), "t2d": marked}
