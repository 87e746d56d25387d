"""Engines whose draft length is `auto`, with a policy that is sure of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof import LLM, SamplingParams
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import LearnedCosts
from draftproof.engine.ahead.lengths import KEPT_FOR
from draftproof.engine.ahead.loop import AheadLoop
from tests.drafters.learned.tiny import write_drafter
from tests.engine.ahead.running import PROMPTS, TOKENS, target_of


def keen(patch: pytest.MonkeyPatch, length: int) -> list[Any]:
    """Drafts of `length` tokens pay, whatever was measured."""
    patch.setattr(AutoLength, "_best", lambda policy, confidence: length)
    patch.setattr(AutoLength, "_affordable", lambda policy, best, confidence: best)
    patch.setattr(AutoLength, "_stretched", lambda policy, best, confidence: best)
    patch.setattr(LearnedCosts, "wants_plain_pass", False)
    observed: list[Any] = []
    observe, observe_cost = AutoLength.observe, AutoLength.observe_cost
    patch.setattr(AutoLength, "observe", lambda policy, *given: (observed.append(given), observe(policy, *given)))
    patch.setattr(
        AutoLength, "observe_cost", lambda policy, *given: (observed.append("cost"), observe_cost(policy, *given))
    )
    return observed


def auto_of(folder: Path, *, ahead: bool) -> LLM:
    write_drafter("dspark", folder / "dspark 2")
    config = {"method": "dspark", "model": str(folder / "dspark 2"), "num_speculative_tokens": TOKENS}
    llm = LLM.from_target(target_of(), None, speculative_config=config | {"draft_length": "auto"})
    if ahead:
        llm.engine.ahead = AheadLoop(llm.target, llm.drafter, llm.engine.scheduler)
    return llm


def wrong_lengths(folder: Path, length: int) -> list[str]:
    """The policy is told of every pass; between two that are timed as many run ahead as are allowed."""
    with pytest.MonkeyPatch.context() as patch:
        observed = keen(patch, length)
        params = SamplingParams(temperature=3.0, seed=1, max_tokens=150, ignore_eos=True, detokenize=False)
        [expected] = auto_of(folder, ahead=False).generate([PROMPTS[0]], params)
        observed.clear()
        llm = auto_of(folder, ahead=True)
        [output] = llm.generate([PROMPTS[0]], params)
    wrong = ["texts"] if output.outputs[0].token_ids != expected.outputs[0].token_ids else []
    record = output.metrics.speculative_decoding
    drafted = [given[0] for given in observed if given != "cost"]
    accepted = sum(given[1] for given in observed if given != "cost")
    if len(drafted) != record["num_spec_steps"] + record["num_plain_steps"] or max(drafted) != length:
        wrong.append("passes that the policy knows of")
    if accepted != record["num_accepted_draft_tokens"]:
        wrong.append("accepted tokens that the policy knows of")
    places = [place for place, given in enumerate(observed) if given == "cost"]
    # What lies between two times: the passes that ran ahead, and the one that was timed.
    gaps = [after - before - 2 for before, after in zip(places, places[1:], strict=False)]
    if max(gaps, default=0) != KEPT_FOR:
        wrong.append(f"steps that run ahead: {gaps}")
    return wrong
