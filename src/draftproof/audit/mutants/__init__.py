"""Wrong engines that the audit must catch, each named after a public bug; `draftproof audit self` runs them all.

Rules are `verify.mutants`' 59, audited in rule mode; here are drafters, verifiers and engines that run over many passes
(scored mode), sampler chains that go wrong inside a block, and engines for the greedy, replay, paired and state modes.
"""

from __future__ import annotations

from draftproof.audit.mutants import drafts, engines, verifiers
from draftproof.audit.mutants.sampler import ExactSampler

SAMPLERS: tuple[type[ExactSampler], ...] = (*drafts.MUTANTS, *verifiers.MUTANTS, *engines.MUTANTS)
"""Those of scored mode that run over tables, many requests at once."""
