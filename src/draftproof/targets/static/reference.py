"""Attention over a static forward's tables, in plain PyTorch: the rule that the kernel computes, and the CPU's way."""

from __future__ import annotations

import torch

from draftproof.targets.shapes import KEY_STEP
from draftproof.targets.static.tables import WORD_BITS, Kind, Tables


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: Tables,
    scale: float,
    window: int | None,
) -> torch.Tensor:
    """query [tokens, heads, dim] over one layer's keys and values [kv_heads, columns, dim].

    Returns [tokens, heads, value dim]; padding's rows are zero. Reads the tables on the host. One token at a time, over
    keys in steps of `KEY_STEP`: what a token gets doesn't depend on the others.
    """
    groups = query.shape[1] // keys.shape[0]
    out = query.new_zeros(query.shape[0], query.shape[1], values.shape[2])
    for index, (first, count, offset, base, total, block) in enumerate(tables.rows.tolist()):
        visible, positions = _visible(tables, first, count, base, total, block)
        columns = offset + torch.arange(total)
        if tables.bucket.kind == Kind.PATH:
            columns[base:] = offset + base + tables.links[index, : total - base]
        for token in range(first, first + count):
            seen = visible[token - first]
            if window is not None:
                seen = seen & ((tables.positions[token] - positions).abs() < window)
            padded = KEY_STEP * -(-(int(seen.nonzero().max()) + 1) // KEY_STEP)
            places = torch.nn.functional.pad(columns[:padded], (0, max(padded - total, 0)))
            hidden = ~torch.nn.functional.pad(seen[:padded], (0, max(padded - total, 0)))
            own = query[token].view(keys.shape[0], groups, -1).float()
            scores = (own @ keys[:, places].float().transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
            read = values[:, places].float().masked_fill(hidden[:, None], 0.0)
            out[token] = (scores.softmax(-1) @ read).flatten(0, 1).to(out.dtype)
    return out


def _visible(
    tables: Tables, first: int, count: int, base: int, total: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """[count, total] booleans: may the token see the key? And the keys' positions [total]."""
    device = tables.rows.device
    keys = torch.arange(total, device=device)
    if tables.bucket.kind == Kind.BLOCK:
        return torch.ones(count, total, dtype=torch.bool, device=device), keys
    if tables.bucket.kind != Kind.TREE:
        last = total - count + torch.arange(count, device=device)
        return keys <= last[:, None], keys
    words = tables.links[first : first + count].long()
    bits = (words[:, :, None] >> torch.arange(WORD_BITS, device=device)) & 1
    visible = torch.ones(count, total, dtype=torch.bool, device=device)
    visible[:, base:] = bits.flatten(1)[:, : total - base].bool()
    positions = keys.clone()
    positions[base:] = tables.positions[block : block + total - base]
    return visible, positions
