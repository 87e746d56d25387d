"""Top-p's mass in rows whose tiles were read with their special tokens, as they were before any change.

So tiles are read beside the kernel that says which tokens are special, and no token is told apart. What the special
tokens weighed is taken away again here: from the whole, and from what stands before a token, since a tile that holds a
special logit has a maximum that reaches it. Float32 sums of what is taken away may be wrong by DOUBT of all that was
there, which may be far more than what is left: every decision leaves that much room.
"""

import triton
import triton.language as tl

from draftproof.kernels.device.rows import highest, level

DOUBT = tl.constexpr(4e-6)
MOST = tl.constexpr(4194304.0)  # of a row's mass over its reference's weight: sums in units of 2^-40 hold 2^22 of it
PART = tl.constexpr(512)  # special tokens looked at together: what memory brings of them is asked for at once


@triton.jit
def special_masses(plain, num_entries, scale, top, z):
    """(mass that special tokens had, that of those of at least logit z), float64, relative to `top`.

    plain: [num_entries] their logits before any change, -inf for those that are not allowed.
    """
    whole, reached = tl.zeros((PART,), tl.float32), tl.zeros((PART,), tl.float32)
    for start in range(0, num_entries, PART):
        entry = start + tl.arange(0, PART)
        logits = tl.load(plain + entry, mask=entry < num_entries, other=-float("inf"))
        weights = tl.exp2(tl.fma(logits, scale, -top))
        whole += weights
        reached += tl.where(logits >= z, weights, 0.0)
    return tl.sum(whole, 0).to(tl.float64), tl.sum(reached, 0).to(tl.float64)


@triton.jit
def surely_kept_loosely(reach, masses, plain, num_entries, scale, top, top_p, z):
    """As `surely_kept`, of the tiles' maxima and masses: (whether bounds show that a token of logit z is kept, the mass
    that top-p wants, how far that may be off, the most that the row weighs)."""
    whole, above = special_masses(plain, num_entries, scale, top, z)
    there = tl.sum(masses, 0)
    doubt = DOUBT * there
    total = there - whole
    needed = top_p * total
    own = tl.exp2(tl.fma(z, scale, -top)).to(tl.float64)
    reached = tl.sum(tl.where(reach >= z, masses, 0.0), 0) - above
    kept = (own > (1.00001 - top_p) * (total + doubt)) | (reached + doubt < (needed - doubt) * 0.99999)
    return kept, needed, doubt, total + doubt


@triton.jit
def best_known(racing):
    """The largest logit among a row's racers: a token that is there, to which masses are relative."""
    return highest(tl.where(racing[0] > -float("inf"), racing[2], -float("inf")))


@triton.jit
def rescaled(needed, doubt, most, largest, known, scale):
    """(needed, doubt) relative to `known` in place of `largest`, and whether sums hold a row of mass `most` then."""
    factor = tl.exp2(level(largest, scale) - level(known, scale)).to(tl.float64)
    return needed * factor, doubt * factor, most * factor < MOST
