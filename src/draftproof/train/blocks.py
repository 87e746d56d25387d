"""Training blocks for DFlash and DSpark: many anchors of a row at once, each with a block of masks behind it.

An anchor is a position whose following token the target sampled. Its block sees the features of its own document's
positions before the anchor and itself, nothing else: exactly what it sees when it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from draftproof.drafters.learned.block_model import BlockModel
from draftproof.drafters.learned.modules import Attend
from draftproof.train.target import Packed


@dataclass(frozen=True, slots=True)
class Blocks:
    """anchors [rows, A] columns, keep [rows, A]; for each predicting slot k of n: columns [rows, A, n] of the token
    that it predicts, valid [rows, A, n] (that token and all before it in the block are the target's own)."""

    anchors: torch.Tensor
    keep: torch.Tensor
    columns: torch.Tensor
    valid: torch.Tensor


def choose_blocks(
    batch: Packed, num_anchors: int, num_slots: int, num_drafts: int, generator: torch.Generator
) -> Blocks:
    """So many random anchors of each row, fewer where a row has fewer. num_drafts: tokens that a block predicts."""
    rows, length = batch.ids.shape
    following = torch.zeros_like(batch.sampled)
    same = batch.documents[:, 1:] == batch.documents[:, :-1]
    following[:, :-1] = batch.sampled[:, 1:] & same & (batch.documents[:, 1:] >= 0)
    scores = torch.rand(rows, length, generator=generator, device=batch.ids.device).masked_fill_(~following, 2.0)
    picked = scores.topk(min(num_anchors, length), dim=1, largest=False)
    anchors, order = picked.indices.sort(dim=1)
    keep = (picked.values < 2.0).gather(1, order)
    columns = anchors[..., None] + torch.arange(1, num_drafts + 1, device=anchors.device)
    inside = columns < length
    clipped = columns.clamp(max=length - 1)
    flat = clipped.flatten(1)
    own = batch.documents.gather(1, flat).view_as(columns) == batch.documents.gather(1, anchors)[..., None]
    sampled = batch.sampled.gather(1, flat).view_as(columns)
    valid = (inside & own & sampled & keep[..., None]).cumprod(dim=-1).bool()
    return Blocks(anchors, keep, clipped, valid)


def block_hidden(
    model: BlockModel, table: torch.Tensor, batch: Packed, taps: torch.Tensor, blocks: Blocks
) -> torch.Tensor:
    """[rows, A, block_size, hidden] after the final norm. table: the target's embedding; taps [rows, n, taps]."""
    layout, (rows, num_anchors) = model.layout, blocks.anchors.shape
    size = layout.block_size
    ids = torch.full((rows, num_anchors, size), layout.mask_token_id, device=batch.ids.device)
    ids[..., 0] = batch.ids.gather(1, blocks.anchors)
    dtype = model.fc.weight.dtype
    block = model.embed(table, ids.flatten(1)).to(dtype)
    features = model.context(taps.to(dtype))
    starts = batch.positions.gather(1, blocks.anchors)
    positions = (starts[..., None] + torch.arange(size, device=starts.device)).flatten(1)
    context_rotation = model.rotation(features, batch.positions)
    masks: dict[tuple[int | None, bool], torch.Tensor] = {}
    attends: list[Attend] = []
    for layer, kind in zip(model.layers, zip(model.backbone.windows, layout.causal, strict=True), strict=True):
        if kind not in masks:
            masks[kind] = training_mask(batch, blocks, positions, size, *kind)
        keys, values = layer.self_attn.keys_values(features, context_rotation)  # type: ignore[operator, union-attr]
        attends.append(_beside(keys, values, masks[kind]))
    hidden: torch.Tensor = model(block, model.rotation(block, positions), attends)
    return hidden.view(rows, num_anchors, size, -1)


def _beside(keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> Attend:
    def attend(own_keys: torch.Tensor, own_values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return torch.cat((keys, own_keys), dim=2), torch.cat((values, own_values), dim=2), mask

    return attend


def training_mask(
    batch: Packed, blocks: Blocks, positions: torch.Tensor, size: int, window: int | None, causal: bool
) -> torch.Tensor:
    """Booleans [rows, 1, A * size, n + A * size]: what each slot sees of the row's context and of all blocks."""
    rows, length = batch.ids.shape
    device, num_queries = batch.ids.device, positions.shape[1]
    own_document = batch.documents.gather(1, blocks.anchors).repeat_interleave(size, dim=1)
    anchors = blocks.anchors.repeat_interleave(size, dim=1)
    context = (batch.documents[:, None] == own_document[..., None]) & (
        torch.arange(length, device=device) < anchors[..., None]
    )
    slots = torch.arange(num_queries, device=device)
    inside = (slots[:, None] // size == slots // size).expand(rows, -1, -1)
    if causal:
        inside = inside & (slots[:, None] >= slots)
    if window is not None:
        context = context & (positions[..., None] - batch.positions[:, None] < window)
        ages = slots[:, None] - slots
        inside = inside & (ages < window) & (ages > -window)
    return torch.cat((context, inside), dim=-1)[:, None]


def slot_weights(num_slots: int, decay: float, like: torch.Tensor) -> torch.Tensor:
    """exp(-k / decay) for k = 0, 1, …: later slots count only if the earlier ones were accepted."""
    return torch.exp(-torch.arange(num_slots, device=like.device) / decay)


def gather_rows(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """rows [R, n, H] at columns [R, ...] to [R, ..., H]."""
    flat: Sequence[int] = columns.shape[1:]
    index = columns.flatten(1)[..., None].expand(-1, -1, rows.shape[-1])
    return rows.gather(1, index).view(rows.shape[0], *flat, rows.shape[-1])
