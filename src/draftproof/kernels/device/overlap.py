"""A kernel may begin while the one before it in the stream still runs: programmatic dependent launch, from sm_90 on.

Until `wait_for_previous` it may read only what no kernel of its own chain of launches writes.
"""

import triton
import triton.language as tl


@triton.jit
def let_next_begin(OVERLAP: tl.constexpr):
    """The kernel launched next may begin once every program has come here."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """Returns when the kernel launched before has ended and what it wrote can be read."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
