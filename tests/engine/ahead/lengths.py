"""Engines whose draft length is `auto`, with a policy that is sure of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof import LLM, SamplingParams
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.costs import LearnedCosts
from draftproof.engine.ahead import loop
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
    observe, observe_pass = AutoLength.observe, LearnedCosts.observe_pass
    patch.setattr(AutoLength, "observe", lambda policy, *given: (observed.append(given), observe(policy, *given)))
    patch.setattr(
        LearnedCosts, "observe_pass", lambda costs, *given: (observed.append("cost"), observe_pass(costs, *given))
    )
    return observed


def auto_of(folder: Path, *, ahead: bool) -> LLM:
    write_drafter("dspark", folder / "dspark 2")
    config = {"method": "dspark", "model": str(folder / "dspark 2"), "num_speculative_tokens": TOKENS}
    llm = LLM.from_target(target_of(), None, speculative_config=config | {"draft_length": "auto"})
    if ahead:
        llm.engine.ahead = AheadLoop(llm.target, llm.drafter, llm.engine.scheduler)
    return llm


def stretches_of(patch: pytest.MonkeyPatch) -> list[int]:
    """How many steps have run ahead from each beginning on."""
    found: list[int] = []
    begin, launch = AheadLoop.begin, AheadLoop._launch

    def begun(ahead: AheadLoop, turns: Any) -> bool:
        found.append(0)
        has_begun = begin(ahead, turns)
        if not has_begun:
            found.pop()
        return has_begun

    def launched(ahead: AheadLoop, step: Any) -> None:
        found[-1] += 1
        launch(ahead, step)

    patch.setattr(AheadLoop, "begin", begun)
    patch.setattr(AheadLoop, "_launch", launched)
    return found


def wrong_lengths(folder: Path, length: int) -> list[str]:
    """The policy is told of every pass, and what the second and later ones of a stretch cost; it is asked again."""
    with pytest.MonkeyPatch.context() as patch:
        observed = keen(patch, length)
        params = SamplingParams(temperature=3.0, seed=1, max_tokens=150, ignore_eos=True, detokenize=False)
        [expected] = auto_of(folder, ahead=False).generate([PROMPTS[0]], params)
        observed.clear()
        patch.setattr(loop, "MOST_KEPT", 2 * KEPT_FOR)
        stretches = stretches_of(patch)
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
    if len(stretches) < 2 or set(stretches[:-1]) != {2 * KEPT_FOR}:
        wrong.append(f"stretches of steps that run ahead: {stretches}")
    # All but the first of each; the very last one may have been launched and dropped.
    num_timed, most = sum(given == "cost" for given in observed), sum(stretches) - len(stretches)
    if not most - 1 <= num_timed <= most:
        wrong.append("costs that the policy knows of")
    return wrong
