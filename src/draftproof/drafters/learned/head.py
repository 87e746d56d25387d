"""The target's embedding table and output layer, as its drafters use them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.eight_bit import EightBitLinear
from draftproof.drafters.learned.layout import OTHER_TARGET
from draftproof.drafters.learned.vocab import VocabMap
from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.base import TappedTarget
from draftproof.targets.products import PRODUCTS

_NUM_COMPARED = 16


class TargetEnds:
    """`table` [V, hidden] is the raw input embedding; `logits(hidden)` the output layer's, of the vocabulary map's
    tokens where there is one: a reduced vocabulary needs no weights of its own."""

    def __init__(
        self, target: TappedTarget, vocab: VocabMap | None, own_head: nn.Module | None, *, in_eight_bits: bool = False
    ) -> None:
        """in_eight_bits: rows that are picked out of the target's output layer. own_head: as it is to be used."""
        model: Any = target.model
        self.table: torch.Tensor = model.get_input_embeddings().weight
        self.vocab = vocab
        self._head = own_head
        self._rows: torch.Tensor | None = None
        self._dtype = self.table.dtype
        if own_head is None:
            output = model.get_output_embeddings()
            if vocab is None:
                self._head = output
            else:
                self._rows = _output_weight(model)[vocab.token_ids.to(self.table.device)]
                if in_eight_bits:
                    self._head, self._rows = EightBitLinear(self._rows, None), None
                    self._dtype = torch.float32
                elif isinstance(output, PRODUCTS):
                    self._head, self._rows = type(output)(self._rows, None), None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] to [..., V], or [..., D] under a vocabulary map: what 8 bits give stays in float32."""
        # Some rows of a block lie apart in memory: as they are, the product would read the weights once for each block.
        flat = hidden.reshape(-1, hidden.shape[-1]).to(self._dtype)
        head: Any = self._head
        out: torch.Tensor = nn.functional.linear(flat, self._rows) if self._rows is not None else head(flat)
        return out.view(*hidden.shape[:-1], -1)


def _output_weight(model: Any) -> torch.Tensor:
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if model.config.get_text_config(decoder=True).tie_word_embeddings:
        weight: torch.Tensor = table.weight
    elif hasattr(head, "weight"):
        weight = head.weight
    elif isinstance(head, PRODUCTS):
        weight = head.dense_weight()
    else:
        raise UnsupportedModelError(f"the weights of {type(head).__name__}, the target's output layer, can't be read")
    return weight


def check_same_target(checkpoint: Checkpoint, target: TappedTarget) -> None:
    """Where the checkpoint holds a copy of the target's embedding, it must be this target's.

    Raises ModelError, which names the tensor, for another shape or other numbers: the drafter of another target.
    """
    table: torch.Tensor = target.model.get_input_embeddings().weight
    for name in ("embed_tokens.weight", "model.embed_tokens.weight"):
        if name not in checkpoint:
            continue
        found = checkpoint.shape(name)
        if found != tuple(table.shape):
            raise ModelError(
                f"{checkpoint.folder}: {name} has shape {found}, and this target's embedding {tuple(table.shape)}; "
                f"{OTHER_TARGET}"
            )
        theirs, ours = checkpoint.tensor(name)[:_NUM_COMPARED].float(), table[:_NUM_COMPARED].float().cpu()
        if not torch.allclose(theirs, ours, rtol=0.05, atol=0.02 * float(ours.abs().max())):
            raise ModelError(
                f"{checkpoint.folder}: {name} holds other numbers than this target's embedding; {OTHER_TARGET}"
            )
