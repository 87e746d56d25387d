"""The built-in matrix of settings: exact engines pass it, and one that ignores a parameter doesn't."""

from __future__ import annotations

from dataclasses import replace

import pytest

from draftproof import SamplingParams
from draftproof.audit.engine import Request
from draftproof.audit.greedy import audit_greedy
from draftproof.audit.matrix import sampler_matrix
from draftproof.audit.models import TableModel
from draftproof.audit.mutants.chains import EOS, ChainEngine, chain_logits
from draftproof.audit.scored import audit_scored
from draftproof.audit.scorer import Scorer
from draftproof.audit.verdict import Audit, Verdict

PROMPTS = [[1], [2], [3]]


class Ignores(ChainEngine):
    """An exact engine that does as if one field were unset."""

    field = ""

    def generate(self, requests: list[Request]) -> list:
        default = getattr(SamplingParams(), self.field)
        return super().generate([replace(r, params=replace(r.params, **{self.field: default})) for r in requests])


def audited(engine: ChainEngine, settings: dict[str, SamplingParams], num_tokens: int) -> Audit:
    scorer = Scorer(TableModel.of_logits(chain_logits()), eos_token_ids=(EOS,))
    return audit_scored(engine, scorer, PROMPTS, settings=settings, num_tokens=num_tokens, max_tokens=16)


def test_every_parameter_that_engines_share_is_in_it() -> None:
    default = SamplingParams()
    used = {
        name
        for params in sampler_matrix().values()
        for name in (
            "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
            "logit_bias", "min_tokens", "stop_token_ids",
        )
        if getattr(params, name) != getattr(default, name)
    }  # fmt: skip
    assert len(used) == 10
    assert all(params.is_greedy for params in sampler_matrix(greedy=True).values())
    assert not any(params.is_greedy for params in sampler_matrix().values())


def test_an_exact_engine_passes_the_whole_matrix() -> None:
    audit = audited(ChainEngine(chain_logits()), sampler_matrix(), 4000)
    assert audit.verdict is Verdict.CONSISTENT and not audit.refused
    greedy = audit_greedy(
        ChainEngine(chain_logits()), Scorer(TableModel.of_logits(chain_logits()), eos_token_ids=(EOS,)), PROMPTS,
        settings=sampler_matrix(greedy=True),
    )  # fmt: skip
    assert greedy.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("field", ["top_k", "min_p", "repetition_penalty", "logit_bias", "min_tokens"])
def test_an_ignored_parameter_is_a_finding(field: str) -> None:
    engine = Ignores(chain_logits())
    engine.field = field
    assert audited(engine, sampler_matrix(), 12_000).verdict is Verdict.NOT_LOSSLESS
