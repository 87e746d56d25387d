"""Every wrong sampler is caught by the tests of scored mode, and the exact one is not.

Error budget: the exact sampler's family is tested once, at 1e-4. Each mutant's plan is 100,000 tokens; the seeds are
fixed and the outcome with them.
"""

from __future__ import annotations

import pytest

from draftproof.audit.battery import Layout, adjusted_p, hypotheses
from draftproof.audit.mutants import SAMPLERS
from draftproof.audit.mutants.sampler import ExactSampler, instance_tables
from tests.audit.toys import scores_of

LAYOUT = Layout(knows_draft=True, by_offset=True)


@pytest.mark.parametrize("instance", ["random", "far", "tail", "T08"])
def test_the_exact_sampler_passes(instance: str) -> None:
    target, draft = instance_tables(instance)
    scores = scores_of(ExactSampler(target, draft).run(1250, 40, 1), target, draft)
    assert min(adjusted_p(hypotheses(scores, LAYOUT))) > 1e-4


@pytest.mark.parametrize("mutant", SAMPLERS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_sampler_is_caught(mutant: type[ExactSampler]) -> None:
    target, draft = instance_tables(mutant.instance)
    scores = scores_of(mutant(target, draft).run(2500, 40, 2), target, draft)
    assert min(adjusted_p(hypotheses(scores, LAYOUT))) <= 1e-6


def test_each_mutant_has_a_name_and_a_source() -> None:
    assert len({mutant.name for mutant in SAMPLERS}) == len(SAMPLERS)
    assert all(mutant.after and mutant.after != ExactSampler.after for mutant in SAMPLERS)
