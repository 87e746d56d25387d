"""What must hold of steps that run ahead, as functions that say what doesn't: for tests, and for their mutants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from draftproof import SamplingParams
from tests.engine.ahead.lengths import wrong_lengths
from tests.engine.ahead.running import PARAMS, PROMPTS, TOKENS, bench_of, followed, said, sizes_for, target_of, texts
from tests.targets.models import random_ids

WIDTH = 3 * (TOKENS + 1)
LONG = [random_ids(length, seed=length) for length in (246, 251)]
SAMPLED = {"temperature": 3.0, "ignore_eos": True, "detokenize": False}


class Expected:
    """What waited-for steps say, found once."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def __call__(self, name: Any, find: Any) -> Any:
        if name not in self._known:
            self._known[name] = find()
        return self._known[name]


EXPECTED = Expected()


def wrong_together(folder: Path) -> list[str]:
    """Five requests over three slots: texts, drafts accepted, and a second time by the steps that are there already."""
    waited, drafts = EXPECTED("together", lambda: followed(bench_of(target_of(), "dflash", folder, ahead=False)))
    bench = bench_of(target_of(), "dflash", folder, ahead=True)
    (ahead, own_drafts), wrong = followed(bench), []
    if texts(ahead) != texts(waited):
        wrong.append("texts")
    for found, expected in zip(own_drafts, drafts, strict=True):
        # Near its end a request that is waited for asks for fewer tokens.
        full = [place for place, ids in enumerate(expected) if len(ids) == TOKENS]
        if [found[place] for place in full] != [expected[place] for place in full]:
            wrong.append("drafts")
    other = [SamplingParams(seed=70 + seed, max_tokens=8, **SAMPLED) for seed in range(2)]
    again = EXPECTED("again", lambda: texts(said(bench_of(target_of(), "dflash", folder, ahead=False), other)))
    for params in (other, PARAMS[:2]):
        found = texts(said(bench, params))
        if found != (again if params is other else texts(waited)[:2]):
            wrong.append("a second batch")
    if bench.engine.ahead.num_steps < 10:
        wrong.append("hardly a step ran ahead")
    return wrong


def wrong_filled_up(folder: Path, method: str = "dflash") -> list[str]:
    """One of six ends at once: five run as six, and fewer as they end."""
    params, sizes = [*PARAMS, SamplingParams(seed=12, max_tokens=36, **SAMPLED)], sizes_for(method)
    waited, drafts = EXPECTED(
        f"filled up, {method}", lambda: followed(bench_of(target_of(8, **sizes), method, folder, ahead=False), params)
    )
    bench = bench_of(target_of(8, **sizes), method, folder, ahead=True)
    (ahead, own_drafts), wrong = followed(bench, params), []
    if texts(ahead) != texts(waited):
        wrong.append("texts")
    for found, expected in zip(own_drafts, drafts, strict=True):
        full = [place for place, ids in enumerate(expected) if len(ids) == TOKENS]
        if [found[place] for place in full] != [expected[place] for place in full]:
            wrong.append("drafts")
    sizes = {name[0] for name in bench.engine.ahead._steps}
    if 6 not in sizes or sizes - {1, 2, 3, 4, 6}:
        wrong.append(f"steps for {sizes} requests")
    return wrong


def wrong_chains(folder: Path) -> list[str]:
    """As `wrong_filled_up`, with a drafter that reads its own hidden states."""
    return wrong_filled_up(folder, "eagle3")


def wrong_moves(folder: Path) -> list[str]:
    """Contexts that outgrow their place in the cache, so that slots are moved while steps run."""
    params = [SamplingParams(seed=seed, max_tokens=12, **SAMPLED) for seed in range(2)]
    found = []
    for ahead in (False, True):
        bench = bench_of(target_of(2), None, folder, ahead=ahead)
        requests = [bench.add(prompt, each) for prompt, each in zip(LONG, params, strict=True)]
        bench.run()
        found.append(texts(requests))
    return ["texts"] if found[0] != found[1] else []


def wrong_changes(folder: Path) -> list[str]:
    """One joins, one is aborted, one step is interrupted; what stays in the slots is what the texts say."""
    target = target_of(invariant=True, width=WIDTH)
    bench = bench_of(target, "dflash", folder, ahead=True, enable_prefix_caching=True)
    engine = bench.engine
    params = [SamplingParams(seed=seed, max_tokens=60, **SAMPLED) for seed in range(4)]
    wrong, slots = [], {}
    requests = [bench.add(PROMPTS[3], params[0]), bench.add(PROMPTS[4], params[1])]

    def stepped(count: int) -> None:
        for _ in range(count):
            engine.step()
            slots.update({request.request_id: request.slot for request in requests if request.slot >= 0})

    stepped(3)
    requests.append(bench.add(PROMPTS[2], params[2]))
    stepped(5)
    if not requests[2].emitted:
        wrong.append("who joins isn't served")
    if not engine.ahead.is_running:
        wrong.append("no step runs ahead")
    engine.abort(requests[1].request_id)
    wrong += _wrong_slot(target, requests[1], slots, "aborted")
    stepped(1)
    if engine.has_unfinished:
        advance = engine._advance

        def interrupted() -> Any:
            advance()
            raise KeyboardInterrupt

        engine._advance = interrupted  # type: ignore[method-assign]
        try:
            engine.step()
        except KeyboardInterrupt:
            pass
        engine._advance = advance  # type: ignore[method-assign]
    bench.run()
    requests.append(bench.add(requests[0].context_ids[:40], params[3]))
    bench.run()
    wrong += _wrong_slot(target, requests[0], slots, "finished")
    for index, request in enumerate(requests):
        prompt = request.prompt_ids

        def alone(prompt: Any = prompt, index: int = index) -> list[int]:
            other = bench_of(target_of(1, invariant=True, width=WIDTH), None, folder, ahead=False)
            one = other.add(prompt, params[index])
            other.run()
            return texts([one])[0]

        expected = EXPECTED((prompt, index), alone)
        [text] = texts([request])
        if text != (expected[: len(text)] if index == 1 else expected):
            wrong.append(f"text of request {index}")
    return wrong


def _wrong_slot(target: Any, request: Any, slots: dict[str, int], what: str) -> list[str]:
    """A parked slot holds what the request has committed, without its newest token."""
    length = target.length(slots[request.request_id])
    return [] if length == len(request.context_ids) - 1 else [f"the slot of who {what}"]


def wrong_faults(folder: Path) -> list[str]:
    """Rows in which token 11 is far likelier than token 12 become NaN."""

    def run(*, ahead: bool) -> list[Any]:
        target = target_of()
        static = target._runner.static
        forward = static._forward

        def spoiled(step: Any, rows: Any = None) -> None:
            forward(step, rows)
            if step.logits is not None:
                worst = step.logits[:, 11:12] > step.logits[:, 12:13] + 1.5
                step.logits = torch.where(worst, torch.nan, step.logits)

        static._forward = spoiled
        params = [SamplingParams(seed=seed, max_tokens=60, **SAMPLED) for seed in range(3)]
        requests = said(bench_of(target, "dflash" if ahead else None, folder, ahead=ahead), params)
        return [(text, str(request.error)) for text, request in zip(texts(requests), requests, strict=True)]

    expected = EXPECTED("faults", lambda: run(ahead=False))
    if all(error == "None" for _, error in expected):
        return ["no row is faulty"]
    return ["texts or errors"] if run(ahead=True) != expected else []


CHECKS = {
    "lengths": lambda folder: wrong_lengths(folder, 1) + wrong_lengths(folder, 3),
    "together": wrong_together,
    "filled up": wrong_filled_up,
    "chains": wrong_chains,
    "moves": wrong_moves,
    "changes": wrong_changes,
    "faults": wrong_faults,
}
