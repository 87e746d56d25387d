"""One forward's convolutions and recurrences: the tokens of any number of requests, side by side in one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.recurrent import functions, steps
from draftproof.targets.recurrent.convolution import convolve, extended
from draftproof.targets.recurrent.scan import Plan, Recurrence, Tensors, scan
from draftproof.targets.recurrent.states import Found, Inputs, RecurrentStates, last_of


class RecurrentForward:
    """requests: each on its own slot, in the order in which their tokens lie. Tokens behind them are padding."""

    def __init__(self, states: RecurrentStates, requests: Sequence[ScoreRequest], device: torch.device) -> None:
        self._states = states
        self._slots = [request.slot for request in requests]
        self._lengths = [len(request.token_ids) for request in requests]
        self._settled = [request.num_rows == 0 for request in requests]
        self._num_tokens = sum(self._lengths)
        states.settle(self._slots, max(self._lengths))
        self._plan = Plan.of(self._lengths, device)
        self._layer = -1
        self._convolved: dict[int, tuple[list[Inputs], torch.Tensor]] = {}
        self._found: dict[int, Found] = {}

    def enter(self, layer: int, state_index: int) -> None:
        """The calls that follow are this layer's."""
        if state_index:
            raise UnsupportedModelError("layers with several recurrent states each can't be rewound exactly")
        self._layer = layer

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One of the functions that `functions.install` has led here, by transformers' arguments."""
        if name == functions.CONVOLUTION:
            return self._convolve(*args, **kwargs)
        if name == functions.GATED_DELTA:
            return self._gated_delta(*args, **kwargs)
        if name == functions.STATE_SPACE:
            return self._state_space(*args, **kwargs)
        return self._channel_state_space(*args, **kwargs)

    def finish(self) -> None:
        """The forward has run: its tokens are the slots' now."""
        # A model may have run its first layers alone, but no later ones without them.
        expected = self._states.layers[: len(self._found)]
        if sorted(self._found) != expected or set(self._convolved) != set(self._found):
            raise ModelError(f"recurrent layers {expected} were to run, and {sorted(self._convolved)} have")
        self._states.append(self._slots, self._lengths, self._found, settled=self._settled)

    def _convolve(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        seq_idx: Any = None,
        **_: Any,
    ) -> torch.Tensor:
        """[1, channels, tokens] to the same."""
        _refuse(seq_idx=seq_idx)
        inputs = self._own(hidden_states[0].T).contiguous()
        before, state = self._states.ends(self._layer, self._slots)
        rows = extended(inputs, before, self._lengths)
        out = convolve(rows, weight, bias, activation)
        pieces = [Inputs(piece, ()) for piece in torch.split(inputs, self._lengths)]
        self._convolved[self._layer] = pieces, last_of(rows, before.shape[1])
        if state is None:
            self._found[self._layer] = Found(pieces, self._convolved[self._layer][1], None)
        return self._padded(out, hidden_states.shape[2]).T[None]

    def _gated_delta(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        use_qk_l2norm_in_kernel: bool = False,
        cu_seqlens: Any = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[1, tokens, heads, value dim]; the state that follows is kept here, and an empty one is returned."""
        _refuse(cu_seqlens=cu_seqlens)
        own = [part[:, : self._num_tokens] for part in (query, key, value, g, beta)]
        writes, reads = steps.gated_delta_inputs(*own, norm=use_qk_l2norm_in_kernel)
        out = self._scan(steps.GatedDelta(), writes, reads).to(query.dtype)
        return self._padded(out, query.shape[1])[None], out.new_zeros(0)

    def _state_space(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int = 0,
        D: torch.Tensor | None = None,
        dt_bias: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **kwargs: Any,
    ) -> Any:
        """[1, tokens, heads, head dim] in float32 at least, as transformers' own."""
        _refuse(z=z, seq_idx=kwargs.get("seq_idx"), cu_seqlens=kwargs.get("cu_seqlens"))
        values, keys, queries = (self._own(part[0]) for part in (hidden_states, B, C))
        step = steps.time_steps(self._own(dt[0]), dt_bias, positive=dt_softplus, limits=dt_limit)
        writes, reads = steps.state_space_inputs(values, step, A, keys, queries)
        out = self._scan(steps.StateSpace(), writes, reads)
        if D is not None:
            out = out + steps.widened(values) * steps.widened(D)[:, None]
        whole = self._padded(out, hidden_states.shape[1])[None]
        return (whole, out.new_zeros(0)) if return_final_states else whole

    def _channel_state_space(
        self,
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        D: torch.Tensor | None = None,
        z: torch.Tensor | None = None,
        delta_bias: torch.Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **_: Any,
    ) -> Any:
        """[1, channels, tokens] to the same."""
        values, keys, queries = (steps.widened(self._own(part[0].T)) for part in (hidden_states, B, C))
        limits = (0.0, float("inf")) if delta_softplus else (float("-inf"), float("inf"))
        step = steps.time_steps(self._own(dt[0].T), delta_bias, positive=delta_softplus, limits=limits)
        recurrence = steps.ChannelStateSpace(steps.widened(A))
        out = self._scan(recurrence, (step, values, keys), (queries,))
        if D is not None:
            out = out + values * steps.widened(D)
        if z is not None:
            out = out * steps.silu(steps.widened(self._own(z[0].T)))
        whole = self._padded(out.to(hidden_states.dtype), hidden_states.shape[2]).T[None]
        return (whole, out.new_zeros(0)) if return_last_state else whole

    def _scan(self, recurrence: Recurrence, writes: Tensors, reads: Tensors) -> torch.Tensor:
        """[tokens, …] what the current layer's tokens read."""
        layer = self._layer
        _, before = self._states.ends(layer, [self._slots[segment] for segment in self._plan.by_length])
        if before is None or layer not in self._convolved:
            raise ModelError(f"layer {layer} has a recurrence, and no state or convolution before it")
        after, out = scan(recurrence, before, self._plan, writes, reads)
        self._states.remember(layer, recurrence)
        index = torch.tensor(self._plan.by_length, device=after.device)
        pieces, convolved = self._convolved[layer]
        by_segment = zip(*(torch.split(write, self._lengths) for write in writes), strict=True)
        inputs = [Inputs(piece.convolved, tuple(parts)) for piece, parts in zip(pieces, by_segment, strict=True)]
        self._found[layer] = Found(inputs, convolved, torch.empty_like(after).index_copy_(0, index, after))
        return out

    def _own(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, …] without padding."""
        return tokens[: self._num_tokens]

    def _padded(self, tokens: torch.Tensor, num_tokens: int) -> torch.Tensor:
        missing = num_tokens - len(tokens)
        return tokens if not missing else torch.cat([tokens, tokens.new_zeros(missing, *tokens.shape[1:])])


def _refuse(**arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise UnsupportedModelError(f"the model's recurrent layers were given {name}, which isn't computed here")
