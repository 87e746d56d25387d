"""A request's verdict, as in keyed: its tokens, their rows, how many are accepted, its fault."""

import triton
import triton.language as tl


@triton.jit
def drafted_of(first, num_nodes, draft, NODES: tl.constexpr):
    """[NODES] a request's drafted tokens, -1 behind the last."""
    position = tl.arange(0, NODES)
    return tl.load(draft[1] + first + position + 1, mask=position < num_nodes, other=-1)


@triton.jit
def store_verdict(request, stop, drafted, winner, fault, verdict, NODES: tl.constexpr):
    """Emits the `stop` tokens that are accepted, of `drafted` [NODES], and the one that follows. winner: -1 with a
    fault."""
    position, at = tl.arange(0, NODES), request * NODES + tl.arange(0, NODES)
    tl.store(verdict[0] + at, tl.where(position < stop, drafted, tl.where(position == stop, winner, -1)))
    tl.store(verdict[1] + at, tl.where(position < stop, position + 1, -1))
    tl.store(verdict[2] + request, stop)
    tl.store(verdict[3] + request, fault)
