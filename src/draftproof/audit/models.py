"""Models that the auditor can run: the target, and the drafter where its weights are at hand.

A model gives the raw logits of every output token, teacher-forced: row i belongs to the token after the prompt and i
output tokens. `TableModel` reads them from a table, `TorchModel` from a causal language model of transformers'
interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from draftproof import ParameterError
from draftproof.audit.scores import Floats
from draftproof.verify.tables import Table


class Model(Protocol):
    """Logits of given texts. vocab_size: of the rows. max_batch: how many texts one call should take."""

    vocab_size: int
    max_batch: int

    def logits(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[torch.Tensor]:
        """For each (prompt ids, output ids): [len(output), vocab_size], in the model's own type."""
        ...


class TableModel:
    """Logits from a table, by the last token or by the whole context.

    rows: [V, V] probabilities, row c the law after token c; or a `Table`, whose law is a function of the context. Where
    the engine's own logits are not log-probabilities use `of_logits`: a repetition penalty multiplies them.
    """

    max_batch = 4096

    def __init__(self, rows: Floats | Table) -> None:
        self._table = rows if isinstance(rows, Table) else None
        self.vocab_size: int
        if isinstance(rows, Table):
            self.vocab_size = rows.vocab_size
            return
        with np.errstate(divide="ignore"):
            self._take_rows(np.log(rows))

    @classmethod
    def of_logits(cls, logits: Floats) -> TableModel:
        """The model whose logits after token c are logits[c]."""
        made = cls.__new__(cls)
        made._table = None
        made._take_rows(logits)
        return made

    def _take_rows(self, logits: Floats) -> None:
        if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
            raise ParameterError("rows", logits.shape, "one row for each last token, [V, V]")
        self.vocab_size = logits.shape[1]
        self._log_rows = torch.from_numpy(logits)

    def logits(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[torch.Tensor]:
        if self._table is not None:
            return [self._of_table(self._table, prompt, output) for prompt, output in texts]
        last = [token for prompt, output in texts for token in (prompt[-1], *output[:-1])]
        rows = self._log_rows[torch.tensor(last, dtype=torch.int64)]
        return list(torch.split(rows, [len(output) for _, output in texts]))

    def _of_table(self, table: Table, prompt: Sequence[int], output: Sequence[int]) -> torch.Tensor:
        contexts = [(*prompt, *output[:index]) for index in range(len(output))]
        rows = [[float(prob) for prob in table.probs(context)] for context in contexts]
        return torch.tensor(rows, dtype=torch.float64).reshape(-1, self.vocab_size).log()


class TorchModel:
    """A transformers causal language model, on its own device. Texts of a batch are padded at the end.

    model: called as model(input_ids=…, attention_mask=…); a plain forward without a cache. num_positions: the most
    tokens of one text, vocab_size: without padding; the model's own if None. max_tokens_per_call: of padded tokens
    times vocabulary's worth of memory.
    """

    def __init__(
        self, model: Any, *, max_batch: int = 16, num_positions: int | None = None, vocab_size: int | None = None
    ) -> None:
        self._model = model.eval()
        config = model.config
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.vocab_size = vocab_size or int(text_config.vocab_size)
        self.max_batch = max_batch
        self.num_positions = num_positions or int(getattr(text_config, "max_position_embeddings", 1 << 30))

    @torch.no_grad()
    def logits(self, texts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[torch.Tensor]:
        longest = max(len(prompt) + len(output) for prompt, output in texts)
        if longest - 1 > self.num_positions:
            raise ParameterError(
                "prompts", f"a text of {longest} tokens", f"at most {self.num_positions} tokens, prompt and output"
            )
        ids = torch.zeros((len(texts), max(longest - 1, 1)), dtype=torch.int64)
        seen = torch.zeros_like(ids)
        for row, (prompt, output) in enumerate(texts):
            text = torch.tensor([*prompt, *output][:-1] if output else list(prompt), dtype=torch.int64)
            ids[row, : len(text)] = text
            seen[row, : len(text)] = 1
        device = next(self._model.parameters()).device
        out = self._model(input_ids=ids.to(device), attention_mask=seen.to(device), use_cache=False).logits
        found = []
        for row, (prompt, output) in enumerate(texts):
            start = len(prompt) - 1
            found.append(out[row, start : start + len(output), : self.vocab_size])
        return found
