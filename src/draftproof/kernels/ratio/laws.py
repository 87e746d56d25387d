"""What drafted tokens were drawn from, as the kernels of `rejection` and `block` take it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftproof.errors import ParameterError
from draftproof.kernels.arguments import Rows
from draftproof.kernels.launch import KINDS


@dataclass(frozen=True, slots=True, eq=False)
class DraftLaws:
    """The laws of all requests' drafted tokens, one row for each token in the order of the drafts.

    Made by `point_masses`, `dense`, `dense_probs` or `sparse`. The tokens must have been drawn from these very laws,
    with noise of their own (not the target's field), and a draft's length must not have looked at a token that was
    dropped: the kernels can't see this, and a ratio test is biased without it.

    kind: "point", "logits", "probs" or "sparse". values: [tokens, >= vocab_size] logits or probabilities, [tokens, K]
    probabilities for "sparse". token_ids: [tokens, K] int32 for "sparse". temperature: [requests] float32 for "logits".
    """

    kind: str
    values: torch.Tensor | None
    token_ids: torch.Tensor | None
    temperature: torch.Tensor | None
    vocab_size: int

    @classmethod
    def point_masses(cls) -> DraftLaws:
        """Tokens that a rule chose: n-gram, suffix, argmax."""
        return cls("point", None, None, None, 0)

    @classmethod
    def dense(cls, logits: torch.Tensor, temperature: torch.Tensor, *, vocab_size: int | None = None) -> DraftLaws:
        """softmax(logits / temperature). logits: [tokens, >= vocab_size] bf16, fp16 or fp32, a row's side by side.

        temperature: [requests] float32 on the same device, 0 for the argmax (the lowest id on ties), else 1e-30 to
        1e30. vocab_size: the drafter's, without padding.
        """
        size = _width(logits, vocab_size, tuple(KINDS))
        if temperature.dtype != torch.float32 or temperature.ndim != 1:
            given = f"{temperature.dtype} of shape {tuple(temperature.shape)}"
            raise ParameterError("temperature", given, "[requests] in float32")
        return cls("logits", logits, None, temperature, size)

    @classmethod
    def dense_probs(cls, probs: torch.Tensor, *, vocab_size: int | None = None) -> DraftLaws:
        """Probabilities [tokens, >= vocab_size] float32, each row of sum 1; another sum is a fault."""
        return cls("probs", probs, None, None, _width(probs, vocab_size, (torch.float32,)))

    @classmethod
    def sparse(cls, token_ids: torch.Tensor, probs: torch.Tensor) -> DraftLaws:
        """Probabilities [tokens, K] float32 of `token_ids` [tokens, K] int32, ascending, -1 at the end."""
        if token_ids.dtype != torch.int32 or probs.dtype != torch.float32 or token_ids.shape != probs.shape:
            given = f"{token_ids.dtype} {tuple(token_ids.shape)} and {probs.dtype} {tuple(probs.shape)}"
            raise ParameterError("token_ids, probs", given, "int32 and float32 of one shape [tokens, K]")
        if probs.ndim != 2 or probs.shape[1] == 0 or not (token_ids.is_contiguous() and probs.is_contiguous()):
            raise ParameterError("probs", tuple(probs.shape), "[tokens, K >= 1], contiguous")
        return cls("sparse", probs, token_ids, None, probs.shape[1])

    def check(self, rows: Rows) -> None:
        """Raises ParameterError unless there is a row for each drafted token, and drafts are chains."""
        if rows.is_tree:
            raise ParameterError("rows", "trees", "chains", "verify trees by `verify_keyed`")
        num_tokens = rows.num_rows - rows.num_requests
        if self.values is not None and self.values.shape[0] != num_tokens:
            raise ParameterError("draft", f"{self.values.shape[0]} rows", f"{num_tokens}, one for each drafted token")
        if self.temperature is not None and self.temperature.shape[0] != rows.num_requests:
            raise ParameterError("temperature", tuple(self.temperature.shape), f"[{rows.num_requests}], as requests")


def _width(values: torch.Tensor, vocab_size: int | None, dtypes: tuple[torch.dtype, ...]) -> int:
    if values.ndim != 2 or values.dtype not in dtypes or (values.shape[0] > 0 and values.stride(1) != 1):
        given = f"{values.dtype} of shape {tuple(values.shape)}, strides {values.stride()}"
        raise ParameterError(
            "draft", given, f"[tokens, vocabulary] in {', '.join(map(str, dtypes))}, a row side by side"
        )
    size = values.shape[1] if vocab_size is None else vocab_size
    if not 0 < size <= values.shape[1]:
        raise ParameterError("vocab_size", size, f"1 to {values.shape[1]}, the width of the draft's rows")
    return size
