"""Kernels that begin while the one queued before them ends (programmatic dependent launch)."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def follow():
    """Wait until all that was queued before is done; the kernel that is queued next may begin.

    What is read before the call was written before the last kernel that was launched without this.
    """
    tl.extra.cuda.gdc_wait()
    tl.extra.cuda.gdc_launch_dependents()
