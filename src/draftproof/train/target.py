"""The frozen model that text is sampled from and that drafters learn from: plain transformers, no slots.

Unlike `targets.hf.HFTarget` it keeps its weights as they are (a gradient passes through its output layer), runs whole
batches of packed rows at once, and makes no promise about bits.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftproof.drafters.learned.cache import DraftCache
from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.dtype import resolve_dtype
from draftproof.targets.layers import Layers, inspect_layers
from draftproof.targets.support import check_architecture, vocabulary_size
from draftproof.train import attention


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of documents: ids and positions [rows, n] (positions restart with each document), documents [rows, n]
    (their numbers, -1 where padded), sampled [rows, n] (the target's own tokens, what a loss may look at)."""

    ids: torch.Tensor
    positions: torch.Tensor
    documents: torch.Tensor
    sampled: torch.Tensor

    def to(self, device: torch.device) -> Packed:
        """The same on a device."""
        return Packed(*(getattr(self, name).to(device) for name in ("ids", "positions", "documents", "sampled")))


class FrozenTarget:
    """model: a transformers causal LM, taken over: frozen, in eval mode, with our attention function."""

    def __init__(self, model: Any, tokenizer: Any = None, name: str = "") -> None:
        check_architecture(model)
        self.model, self.tokenizer, self.name = model.eval().requires_grad_(False), tokenizer, name
        self.config: Any = model.config.get_text_config(decoder=True)
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size = vocabulary_size(model)
        self.hidden_size, self.num_layers = int(self.config.hidden_size), int(self.config.num_hidden_layers)
        if getattr(model, "_supports_sdpa", False) and model.config._attn_implementation != "eager":
            model.set_attn_implementation(attention.register())
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self.layers: Layers = inspect_layers(model, self._cache_argument)
        self.eos_token_ids = _eos_token_ids(model)

    @classmethod
    def load(cls, model: str | None, *, device: str = "cpu", dtype: str = "auto") -> FrozenTarget:
        """From a folder, a hub name, or None for the embedded model. Raises ModelError and ParameterError."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        if model is None:
            from draftproof.targets.embedded import embedded_folder

            source = str(embedded_folder())
        else:
            source = str(Path(model).expanduser()) if Path(model).expanduser().is_dir() else model
        where = torch.device(device)
        causal_lm: Any = AutoModelForCausalLM
        tokenizers: Any = AutoTokenizer
        try:
            loaded = causal_lm.from_pretrained(source, dtype=resolve_dtype(dtype, where)).to(where)
            tokenizer = tokenizers.from_pretrained(source)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"the target {source} can't be read: {str(error).splitlines()[0]}") from error
        # Published files name the target: a folder's own name, never where it lies on this machine.
        return cls(loaded, tokenizer, name=Path(source).name if Path(source).is_dir() else source)

    @property
    def embedding(self) -> torch.Tensor:
        """[V, hidden] the input embedding table."""
        table: torch.Tensor = self.model.get_input_embeddings().weight
        return table

    @property
    def head(self) -> nn.Module:
        """The output layer, [..., hidden] to [..., V]."""
        head: nn.Module = self.model.get_output_embeddings()
        return head

    def cache(self, num_rows: int, num_columns: int) -> DraftCache:
        """Room for so many columns of every row."""
        shapes = set(self.layers.shapes)
        if len(shapes) != 1:
            raise UnsupportedModelError(f"{type(self.model).__name__} has layers whose caches differ in shape")
        [shape] = shapes
        return DraftCache(self.num_layers, num_rows, shape.heads, shape.key_dim, shape.value_dim,
                          dtype=shape.dtype, device=shape.device, capacity=num_columns)  # fmt: skip

    @torch.no_grad()
    def next_logits(
        self, cache: DraftCache, ids: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor, ages: torch.Tensor
    ) -> torch.Tensor:
        """One token of every row: ids and positions [rows], seen and ages [rows, keys]; logits [rows, V].

        seen: may the token look at this column? ages: how many positions back the column is, for sliding windows.
        The cache was prepared for this column.
        """
        arguments = {
            "input_ids": ids[:, None],
            "position_ids": positions[:, None],
            "attention_mask": self.masks(seen[:, None], ages[:, None]),
            self._cache_argument: cache,
            "use_cache": True,
        }
        logits: torch.Tensor = self.model(**arguments).logits[:, 0]
        return logits

    @torch.no_grad()
    def hidden_states(self, batch: Packed) -> tuple[torch.Tensor, ...]:
        """[rows, n, hidden] for k = 0 to the number of layers, the last after the final norm; documents don't mix."""
        same = (batch.documents[:, :, None] == batch.documents[:, None, :]).tril()
        ages = batch.positions[:, :, None] - batch.positions[:, None, :]
        found: tuple[torch.Tensor, ...] = self.model.base_model(
            input_ids=batch.ids,
            position_ids=batch.positions,
            attention_mask=self.masks(same, ages),
            use_cache=False,
            output_hidden_states=True,
        ).hidden_states
        return found

    def masks(self, seen: torch.Tensor, ages: torch.Tensor) -> Any:
        """Additive masks [rows, 1, n, keys] from booleans [rows, n, keys]: one, or one for each kind of layer."""
        made = {}
        for kind, window in self.layers.windows.items():
            visible = seen if window is None else seen & (ages < window)
            mask = torch.zeros(visible.shape, dtype=self.dtype, device=self.device)
            made[kind] = mask.masked_fill_(~visible, torch.finfo(self.dtype).min)[:, None]
        return next(iter(made.values())) if len(made) == 1 else made


def _eos_token_ids(model: Any) -> tuple[int, ...]:
    for config in (getattr(model, "generation_config", None), model.config):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
    return ()
