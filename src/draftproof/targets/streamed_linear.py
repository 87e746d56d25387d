"""Linear layers in bfloat16 whose weights are read once while up to 28 rows are computed, in machine code of our own.

A narrow forward is bound by reading weights, and arithmetic could hide behind that: but oneDNN's kernel, which PyTorch
calls (`cpu_linear.py`), goes through a piece of the weights again for every six rows, while memory waits. This one
keeps the sums of all rows in registers and asks for weights before they are used (`native/`, with times).

A row's sum runs over the input features in one order, whatever the number of rows.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from draftproof.errors import ModelError
from draftproof.targets.cpu_linear import Direct
from draftproof.targets.native.compiled import product
from draftproof.targets.native.product_ir import COLUMNS

LEAST_WORK = 1 << 15
"""Of fewer products of numbers other threads wouldn't begin before one is done."""


class StreamedLinear(Direct):
    """`torch.nn.Linear` in bfloat16: [..., in_features] to [..., out_features], no gradients. Call it where
    `native.compiled.available()`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features]. bias: [out_features]. Raises ModelError for another dtype."""
        super().__init__()
        if weight.dtype != torch.bfloat16:
            raise ModelError(f"a streamed linear layer has weights in bfloat16, not in {weight.dtype}")
        self.out_features, self.in_features = weight.shape
        self.dtype, self.bias = weight.dtype, None if bias is None else bias.detach()
        whole = pad(weight.detach(), (0, self.in_features % 2, 0, -self.out_features % COLUMNS))
        self._num_pairs = whole.shape[1] // 2
        by_block = whole.view(-1, COLUMNS, self._num_pairs, 2)
        self.streamed = by_block.transpose(1, 2).contiguous()
        self._bias = torch.zeros(len(whole))
        if bias is not None:
            self._bias[: self.out_features] = bias.detach()
        self._product = product(self._num_pairs)
        self._addresses = self.streamed.data_ptr(), self._bias.data_ptr()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if features.dtype != torch.bfloat16 or features.shape[-1] != self.in_features:
            raise ModelError(
                f"a streamed linear layer was given {features.dtype} features of {features.shape[-1]} numbers; it "
                f"takes torch.bfloat16 of {self.in_features}"
            )
        if self.in_features % 2:
            features = pad(features, (0, 1))
        features = features.contiguous()
        out = features.new_empty((*features.shape[:-1], self.out_features))
        num_rows = out.numel() // self.out_features
        if num_rows == 0:
            return out
        num_threads = torch.get_num_threads() if out.numel() * self.in_features >= LEAST_WORK else 1
        weight, bias = self._addresses
        self._product(weight, features.data_ptr(), bias, out.data_ptr(), num_rows, self.out_features, num_threads)
        return out

    def dense_weight(self) -> torch.Tensor:
        """[out_features, in_features] the numbers that were packed, unrounded."""
        rows = self.streamed.transpose(1, 2).reshape(-1, 2 * self._num_pairs)
        return rows[: self.out_features, : self.in_features].contiguous()

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, streamed"
