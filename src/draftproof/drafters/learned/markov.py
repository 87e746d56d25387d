"""DSpark's heads: a logit bias that depends on the token before, and the probability that a token is accepted.

Markov head, slot t of a block whose previous token is u, with e = w1[u] of `rank` numbers and h_t after the final norm:
    vanilla   bias = w2 · e
    gated     bias = w2 · (sigmoid(gate_proj · [h_t; e]) * e)
    rnn       [g; c; o] = joint_proj · [state; e; h_t]; state = sigmoid(g) * state + (1 - sigmoid(g)) * tanh(c);
              bias = w2 · tanh(o); the state starts at 0 with the block
Confidence head: c_t = sigmoid(proj · [h_t; e]) (without e where the configuration says so). It is known before the
token of slot t is drawn, so stopping there looks at no token that is dropped.
Sources: DeepSpec (MIT); SpecForge 0.2.0 modeling/draft/dspark.py; speculators 0.9.0 models/dspark.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from draftproof.drafters.learned.modules import Linear, Table

HEAD_TYPES: Final = ("vanilla", "gated", "rnn")


class MarkovHead(nn.Module):
    """input_vocab_size: of previous tokens; output_vocab_size: of the bias (a reduced vocabulary has fewer)."""

    def __init__(self, kind: str, input_vocab_size: int, output_vocab_size: int, rank: int, hidden_size: int) -> None:
        super().__init__()
        self.kind, self.rank = kind, rank
        self.markov_w1 = Table(input_vocab_size, rank)
        self.markov_w2 = Linear(rank, output_vocab_size)
        if kind == "gated":
            self.gate_proj = Linear(hidden_size + rank, rank, bias=True)
        elif kind == "rnn":
            self.joint_proj = Linear(2 * rank + hidden_size, 3 * rank, bias=True)

    def embed(self, previous_ids: torch.Tensor) -> torch.Tensor:
        """[...] token ids to [..., rank]."""
        found: torch.Tensor = self.markov_w1(previous_ids)
        return found

    def start(self, embedded: torch.Tensor) -> torch.Tensor:
        """The state at a block's beginning, as wide as one slot's `embedded` [..., rank]."""
        return torch.zeros_like(embedded)

    def step(
        self, embedded: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One slot: embedded [..., rank], hidden [..., hidden], state [..., rank] to bias [..., V] and state."""
        if self.kind == "vanilla":
            return self.markov_w2(embedded), state
        if self.kind == "gated":
            gate = torch.sigmoid(self.gate_proj(torch.cat((hidden, embedded), dim=-1)))
            return self.markov_w2(gate * embedded), state
        joint = self.joint_proj(torch.cat((state, embedded, hidden), dim=-1))
        gate, candidate, out = joint.chunk(3, dim=-1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1.0 - gate) * torch.tanh(candidate)
        return self.markov_w2(torch.tanh(out)), state

    def block_bias(self, previous_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """All slots with known previous tokens: previous_ids [..., n], hidden [..., n, hidden] to [..., n, V]."""
        embedded = self.embed(previous_ids)
        if self.kind != "rnn":
            return self.step(embedded, hidden, embedded)[0]
        state, biases = self.start(embedded[..., 0, :]), []
        for slot in range(previous_ids.shape[-1]):
            bias, state = self.step(embedded[..., slot, :], hidden[..., slot, :], state)
            biases.append(bias)
        return torch.stack(biases, dim=-2)


class ConfidenceHead(nn.Module):
    """[..., inputs] to logits [...]; `temperatures` calibrates them by slot (sequential temperature scaling)."""

    def __init__(self, num_inputs: int, temperatures: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.proj = Linear(num_inputs, 1, bias=True)
        self.temperatures = temperatures

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.proj(inputs).squeeze(-1)
        return out

    def probability(self, inputs: torch.Tensor, slot: int) -> torch.Tensor:
        """[...] calibrated probabilities that the token of `slot` is accepted if it is reached."""
        temperature = self.temperatures[slot] if slot < len(self.temperatures) else 1.0
        return torch.sigmoid(self(inputs).float() / temperature)
