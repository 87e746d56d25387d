"""Domino's head: a GRU over the block's tokens so far corrects the logits of the slots behind a prefix.

    z_t = the GRU's output after reading the embeddings of the block's tokens up to the one before slot t's prediction
    logits_t += embed_proj.2 · silu(embed_proj.0 · [h_t; z_t])     for slots from `first_slot` on
Source: SpecForge 0.2.0, modeling/draft/domino.py.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import silu

from draftproof.drafters.learned.modules import Linear


class Recurrence(nn.Module):
    """torch's GRU with one layer and no biases, one step at a time; weights under torch's own names."""

    def __init__(self, input_size: int, state_size: int) -> None:
        super().__init__()
        self.weight_ih_l0 = nn.Parameter(torch.zeros(3 * state_size, input_size))
        self.weight_hh_l0 = nn.Parameter(torch.zeros(3 * state_size, state_size))
        self.state_size = state_size

    def forward(self, features: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """features [..., input], state [..., size] to the next state."""
        reset_in, update_in, new_in = nn.functional.linear(features, self.weight_ih_l0).chunk(3, dim=-1)
        reset_by, update_by, new_by = nn.functional.linear(state, self.weight_hh_l0).chunk(3, dim=-1)
        update = torch.sigmoid(update_in + update_by)
        new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_by) * new_by)
        return (1.0 - update) * new + update * state


class DominoHead(nn.Module):
    """first_slot: the first slot whose logits are corrected, counted in the block."""

    def __init__(self, hidden_size: int, state_size: int, rank: int, vocab_size: int, first_slot: int) -> None:
        super().__init__()
        self.first_slot = first_slot
        self.prefix_gru = Recurrence(hidden_size, state_size)
        self.embed_proj = nn.ModuleDict({"0": Linear(hidden_size + state_size, rank), "2": Linear(rank, vocab_size)})

    def start(self, rows: int, like: torch.Tensor) -> torch.Tensor:
        """The state before the block, [rows, size]."""
        return like.new_zeros(rows, self.prefix_gru.state_size)

    def read(self, embedded: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The state after one more token of the block, embedded [rows, hidden]."""
        after: torch.Tensor = self.prefix_gru(embedded, state)
        return after

    def correction(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """hidden [rows, hidden], state [rows, size] to what is added to the logits [rows, V]."""
        out: torch.Tensor = self.embed_proj["2"](silu(self.embed_proj["0"](torch.cat((hidden, state), dim=-1))))
        return out
