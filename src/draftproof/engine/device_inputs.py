"""What the kernels take of a batch's passes beside logits: rows, parameters, changed logits, masks, drafts' laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from draftproof.core import Dense, Draft, PointMass, Purpose, Sparse
from draftproof.engine.request import Request
from draftproof.grammar import masks_of
from draftproof.kernels import Changes, DraftLaws, Requests, Rows
from draftproof.sampling import History, Mask, allowed_mask
from draftproof.sampling.preset import Preset

_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_WITH_HISTORY = ("min_tokens", "bad_words", "no_repeat_ngram_size")


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One request's pass. logits: [1 + len(draft), >= V], row 0 after the context, row i + 1 after node i."""

    request: Request
    draft: Draft
    logits: torch.Tensor

    @property
    def is_changed(self) -> bool:
        """Whether penalties or a bias change logits."""
        row = self.request.row_params
        return any(map(row.is_set, ("logit_bias", *_PENALTIES)))

    def masks(self, preset: Preset) -> list[Mask | None]:
        """[1 + len(draft)] what each row allows; None for everything."""
        request, row = self.request, self.request.row_params
        grammar: Sequence[Mask | None] = [None] * (1 + len(self.draft))
        if request.grammar is not None:
            grammar = masks_of(request.grammar, self.draft)
        elif row.allowed_ids is None and not any(map(row.is_set, _WITH_HISTORY)):
            return list(grammar)
        histories = [request.history]
        for token_id, parent in zip(self.draft.token_ids, self.draft.parents, strict=True):
            before = histories[parent + 1]
            # Histories that no mask looks at are not made.
            histories.append(before.extended((token_id,)) if any(map(row.is_set, _WITH_HISTORY)) else before)
        return [allowed_mask(row, history, mask, preset) for history, mask in zip(histories, grammar, strict=True)]


def rows_of(passes: Sequence[Pass], purpose: Purpose, device: torch.device) -> Rows:
    """The rows of all passes, in order."""
    drafts = [one.draft for one in passes]
    chains = all(draft.is_chain for draft in drafts)
    return Rows.of_drafts(
        [draft.start for draft in drafts],
        [draft.token_ids for draft in drafts],
        None if chains else [draft.parents for draft in drafts],
        device=device,
        purpose=purpose,
    )


def requests_of(passes: Sequence[Pass], device: torch.device) -> Requests:
    """Their parameters. Raises ParameterError for what the kernels don't take."""
    noises = [one.request.noise for one in passes]
    return Requests.of(
        [one.request.params for one in passes],
        [noise.seed for noise in noises],
        [noise.sample_index for noise in noises],
        device=device,
        changed=True,
        masked=True,
    )


def changes_of(passes: Sequence[Pass], device: torch.device) -> Changes:
    """Penalties and biases with the histories of their contexts; drafts before a row are counted on the device."""
    return Changes.of_counts(
        [_seen(one.request) for one in passes],
        [(one.request.row_params.bias_ids, one.request.row_params.biases) for one in passes],
        [[getattr(one.request.row_params, name) for name in _PENALTIES] for one in passes],
        device=device,
    )


def _seen(request: Request) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    history: History = request.history
    if not any(map(request.row_params.is_set, _PENALTIES)):
        history = History(())
    ids, _, counts = history.counts()
    return ids, counts


def words_of(masks: Sequence[Mask | None], vocab_size: int, device: torch.device) -> torch.Tensor:
    """[rows, ceil(V / 32)] int32, a bit for each token that its row's mask [V] allows."""
    num_words = -(-vocab_size // 32)
    bits = np.ones((len(masks), num_words * 32), dtype=np.bool_)
    for row, mask in zip(bits, masks, strict=True):
        if mask is not None:
            row[:vocab_size] = mask
    return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view("<i4")).to(device)


def kind_of(draft: Draft) -> str | None:
    """How the kernels take the draft's laws: "point", "sparse" or "probs"; None for laws that they don't take as is."""
    kind = "point"
    for law in draft.laws:
        if isinstance(law, PointMass):
            continue
        if not isinstance(law, (Dense, Sparse)) or law.probs.dtype != np.float32:
            return None
        kind = "probs" if isinstance(law, Dense) or kind == "probs" else "sparse"
    return kind


def draft_laws_of(passes: Sequence[Pass], kind: str, device: torch.device) -> DraftLaws:
    """The laws of all drafted tokens, in order."""
    laws = [law for one in passes for law in one.draft.laws]
    if kind == "point" or not laws:
        return DraftLaws.point_masses()
    weights = [law.weights() for law in laws]
    if kind == "sparse":
        width = max(len(values) for values, _ in weights)
        table_of_ids = np.full((len(laws), width), -1, dtype=np.int32)
        probs = np.zeros((len(laws), width), dtype=np.float32)
        for row, (values, token_ids) in enumerate(weights):
            assert token_ids is not None
            table_of_ids[row, : len(values)], probs[row, : len(values)] = token_ids, values
        return DraftLaws.sparse(torch.from_numpy(table_of_ids).to(device), torch.from_numpy(probs).to(device))
    width = 1 + max(len(values) - 1 if ids is None else int(ids[-1]) for values, ids in weights)
    table = np.zeros((len(laws), width), dtype=np.float32)
    for line, (values, token_ids) in zip(table, weights, strict=True):
        line[slice(len(values)) if token_ids is None else token_ids] = values
    return DraftLaws.dense_probs(torch.from_numpy(table).to(device))


def joined(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """[n, W] all rows in one tensor: a view where they lie one after the other, as one forward leaves them."""
    first, total = rows[0], sum(part.shape[0] for part in rows)
    expected = first.storage_offset()
    storage = first.untyped_storage().data_ptr()
    for part in rows:
        together = (
            part.untyped_storage().data_ptr() == storage
            and part.dtype == first.dtype
            and part.shape[1:] == first.shape[1:]
            and part.stride() == first.stride()
            and part.storage_offset() == expected
        )
        if not together:
            return torch.cat(list(rows))
        expected += part.shape[0] * first.stride(0)
    return first.as_strided((total, first.shape[1]), first.stride())
