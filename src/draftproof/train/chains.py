"""Training EAGLE-3 and MTP on what they do: several steps ahead of every position at once.

Step 0 runs all entries of a row from the target's features. In step j entry i reads step j - 1's own hidden state at i
and token i + 1 + j, stands at position i + j, and sees what a draft that began at i would see: the true entries up to
i and, of each later step, the one at i. So all drafts of a row are unrolled side by side, on the text's own tokens.
Source: EAGLE-3's training-time test (2503.01840 section 3.2), FastMTP 2509.18362.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.drafters.learned.eagle3 import ChainModel
from draftproof.train.blocks import gather_rows
from draftproof.train.target import FrozenTarget, Packed


@dataclass(slots=True)
class Unrolled:
    """outputs [rows, M, S, hidden] of the output layer's input, target_logits [rows, M, S, V], token_ids [rows, M, S]
    and valid [rows, M, S], at M chosen positions of each row and S steps."""

    outputs: torch.Tensor
    target_logits: torch.Tensor
    token_ids: torch.Tensor
    valid: torch.Tensor


class _Growing:
    """Keys and values of all steps so far, one step's behind the other's."""

    def __init__(self) -> None:
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx in self._layers:
            keys, values = self._layers[layer_idx]
            key_states, value_states = torch.cat((keys, key_states), dim=2), torch.cat((values, value_states), dim=2)
        self._layers[layer_idx] = (key_states, value_states)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0


def unroll(
    model: ChainModel,
    target: FrozenTarget,
    batch: Packed,
    num_steps: int,
    position_share: float,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Unrolled:
    """Run the model `num_steps` steps ahead. dtype: of the residual stream."""
    states = target.hidden_states(batch)
    taps = torch.cat([states[tap] for tap in model.layout.tap_ids], dim=-1).to(dtype)
    rows, length = batch.ids.shape
    columns, valid = _choose(batch, num_steps, max(1, int(position_share * length)), generator)
    hidden, cache = model.features(taps), _Growing()
    seen = (batch.documents[:, :, None] == batch.documents[:, None, :]).tril()
    own = torch.eye(length, dtype=torch.bool, device=seen.device).expand(rows, -1, -1)
    outputs = []
    for step in range(num_steps):
        if step:
            seen = torch.cat((seen, own), dim=-1)
        mask = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        mask = mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
        embedded = torch.nn.functional.embedding(_shifted(batch.ids, step + 1), target.embedding).to(dtype)
        hidden, output = model(embedded, hidden, batch.positions + step, cache, mask)
        outputs.append(gather_rows(output, columns))
    before = columns[..., None] + torch.arange(1, num_steps + 1, device=columns.device)
    before = before.clamp(max=length - 1)
    with torch.no_grad():
        target_logits = target.head(gather_rows(states[-1], before))
    following = (before + 1).clamp(max=length - 1)
    token_ids = batch.ids.gather(1, following.flatten(1)).view_as(following)
    return Unrolled(torch.stack(outputs, dim=2), target_logits, token_ids, valid)


def _shifted(ids: torch.Tensor, count: int) -> torch.Tensor:
    return torch.nn.functional.pad(ids[:, count:], (0, count))


def _choose(
    batch: Packed, num_steps: int, num_positions: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random columns [rows, M] and valid [rows, M, S]: is the token that step s predicts, and all before it, the
    target's own and in the same document?"""
    rows, length = batch.ids.shape
    ahead = torch.arange(length, device=batch.ids.device)[:, None] + torch.arange(
        2, num_steps + 2, device=batch.ids.device
    )
    clipped = ahead.clamp(max=length - 1)
    same = batch.documents[:, clipped] == batch.documents[..., None]
    valid = (same & batch.sampled[:, clipped] & (ahead < length) & (batch.documents[..., None] >= 0)).cumprod(-1).bool()
    scores = torch.rand(rows, length, generator=generator, device=batch.ids.device)
    columns = scores.masked_fill_(~valid[..., 0], 2.0).topk(num_positions, dim=1, largest=False).indices
    return columns, valid.gather(1, columns[..., None].expand(-1, -1, num_steps))


def step_weights(num_steps: int, decay: float, like: torch.Tensor) -> torch.Tensor:
    """decay^s for s = 0, 1, …"""
    return torch.pow(torch.tensor(decay, device=like.device), torch.arange(num_steps, device=like.device))
