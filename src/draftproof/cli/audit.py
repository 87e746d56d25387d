"""`draftproof audit`: find out whether an engine is lossless. One verb for each mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from draftproof.cli.audit_flags import (
    against_flag,
    alpha_flag,
    asked_flags,
    drafter_flag,
    engine_flag,
    html_flag,
    logit_error_flag,
    matrix_flag,
    preset_flag,
    seed_flag,
)
from draftproof.cli.audit_report import Announcer, report
from draftproof.cli.audit_targets import (
    imported,
    open_audited,
    open_drafter,
    open_llm,
    open_scorer,
    read_budget,
    read_prompts,
    read_settings,
    settings_of,
)
from draftproof.cli.engine_flags import engine_flags
from draftproof.cli.output import counted_progress, note
from draftproof.cli.values import Number
from draftproof.cli.verb import SETTINGS, VerbGroup, verb
from draftproof.errors import ParameterError

_PILOT_TOKENS = 512
_EXAMPLES = ("draftproof audit scored --detect 0.05", "draftproof audit rule --verifier rejection")


@click.group("audit", cls=VerbGroup, context_settings=SETTINGS, examples=_EXAMPLES)
def audit() -> None:
    """Find out whether an engine is lossless.

    Each mode states its plan, its false-alarm rate and the smallest bias that it sees, and ends with a verdict.
    Exit codes: 0 consistent with lossless, 1 not lossless, 3 inconclusive, 2 a flag that can't be honoured.
    """


@verb("rule", examples=("draftproof audit rule --verifier rejection",
                        "draftproof audit rule --rule my_package.verify:rule --html report.html",
                        "draftproof audit rule --rule my_package.verify:rule --coins generator"))  # fmt: skip
@click.option("--rule", metavar="MODULE:FUNCTION",
              help="(target_probs, draft_probs, draft_ids, coins) -> token ids.")  # fmt: skip
@click.option("--verifier", help="Instead, one of draftproof's own verifiers.")
@click.option("--coins", default="explicit", show_default=True, metavar="{explicit,generator}",
              help="coins[0], coins[1], …, which are enumerated; or a numpy Generator, which is sampled.")  # fmt: skip
@click.option("--budget", default="40000", show_default=True, help="Tokens, with --coins generator.")
@alpha_flag
@seed_flag
@html_flag
def rule(**given: Any) -> None:
    """Audit a verification function by itself, without a model.

    With explicit coins its output law is enumerated in rational arithmetic, and must be the target's exactly.
    """
    from draftproof.audit.rule import audit_rule, audit_steps

    if (given["rule"] is None) == (given["verifier"] is None):
        raise ParameterError("rule", given["rule"], "given, or --verifier, and not both")
    with counted_progress("auditing") as advance:
        if given["verifier"] is not None:
            from draftproof.verify import get_verifier
            from draftproof.verify.exact import speculative_step
            from draftproof.verify.proposals import Sampled

            own = get_verifier(given["verifier"])
            found = audit_steps(
                lambda pair, k: speculative_step(own, pair.target, Sampled(pair.draft, (1,) * k)),
                name=given["verifier"], progress=advance,
            )  # fmt: skip
        else:
            num_tokens, _ = read_budget(given["budget"])
            if num_tokens is None:
                raise ParameterError("budget", given["budget"], "a number of tokens in rule mode")
            said = Announcer(advance)
            found = audit_rule(
                imported(given["rule"]), coins=given["coins"], name=given["rule"], num_tokens=num_tokens,
                alpha=given["alpha"], seed=given["seed"], progress=said.progress, on_plan=said.on_plan,
            )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb("scored", examples=("draftproof audit scored --detect 0.05",
                          "draftproof audit scored --budget 10m --setting 'temperature=0.7 top_p=0.9'",
                          "draftproof audit scored --engine http://localhost:8000/v1 --endpoint-model my -m ./my-model",
                          "draftproof audit scored --matrix --method draft_model --draft-model ./small "
                          "--drafter-weights ./small",
                          "draftproof audit scored --engine my_engine:generate --journal run.jsonl"))  # fmt: skip
@engine_flag
@click.option("--budget", help="Tokens (250000) or a time (10m). [default: 250000 tokens]")
@click.option("--detect", type=Number(float), help="Instead, the total variation to be seen with power .99.")
@click.option("--mixed", is_flag=True, help="Every batch holds requests of all settings.")
@click.option("--to-the-end", is_flag=True, help="Don't stop early on evidence.")
@click.option("--journal", metavar="FILE", help="Keep every generation there; the same call goes on from it.")
@asked_flags
@matrix_flag
@drafter_flag
@preset_flag
@logit_error_flag
@alpha_flag
@seed_flag
@html_flag
@engine_flags
def scored(**given: Any) -> None:
    """Hold every emitted token against the target's law.

    The weights of -m are run here too, teacher-forced on what the engine said. All tokens pool into one family of
    tests.
    """
    from draftproof.audit.scored import audit_scored

    num_tokens, seconds = read_budget(given["budget"])
    if given["budget"] is not None and given["detect"] is not None:
        raise ParameterError("detect", given["detect"], "left out where --budget is given")
    read_settings(given["setting"])
    llm = open_llm(given)
    drafter = open_drafter(given, llm)
    engine = open_audited(given["engine"], given, llm, drafter)
    scorer = open_scorer(llm, given["seed"], given["preset"], drafter)
    prompts = read_prompts(given["prompts"], llm)
    settings = settings_of(given, prompts)
    common: dict[str, Any] = {
        "settings": settings, "max_tokens": given["max_tokens"], "batch_size": given["batch_size"],
        "logit_error": 1e-4 if given["logit_error"] is None else given["logit_error"], "alpha": given["alpha"],
        "mixed": given["mixed"], "seed": given["seed"],
    }  # fmt: skip
    if seconds is not None:
        pilot = audit_scored(engine, scorer, prompts, num_tokens=_PILOT_TOKENS, **{**common, "seed": given["seed"] + 1})
        rate = pilot.plan["tokens_per_second"]
        if not rate:
            report(pilot, as_json=given["json"], html=given["html"])
            return
        num_tokens = max(int(rate * seconds), 1)
        note(f"{rate:.0f} tokens a second: {num_tokens:,} tokens in {seconds:.0f} s")
    # A journal that is read again goes faster than the engine, and says nothing of the time.
    resumes = given["journal"] is not None and Path(given["journal"]).exists()
    with counted_progress("auditing") as advance:
        said = Announcer(advance, timed=not resumes)
        found = audit_scored(
            engine, scorer, prompts, num_tokens=num_tokens, detect=given["detect"], stop_early=not given["to_the_end"],
            journal=given["journal"], progress=said.progress, on_plan=said.on_plan, **common,
        )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb(
    "greedy", examples=("draftproof audit greedy", "draftproof audit greedy --setting 'repetition_penalty=1.3' --json")
)
@engine_flag
@asked_flags
@matrix_flag
@drafter_flag
@preset_flag
@logit_error_flag
@seed_flag
@html_flag
@engine_flags
def greedy(**given: Any) -> None:
    """At temperature 0: how far is each committed token from its row's maximum?"""
    from draftproof.audit.greedy import audit_greedy

    read_settings(given["setting"], greedy=True)
    llm = open_llm(given)
    engine = open_audited(given["engine"], given, llm, open_drafter(given, llm))
    scorer = open_scorer(llm, given["seed"], given["preset"])
    prompts = read_prompts(given["prompts"], llm)
    with counted_progress("auditing") as advance:
        found = audit_greedy(
            engine, scorer, prompts, settings=settings_of(given, prompts, greedy=True), max_tokens=given["max_tokens"],
            batch_size=given["batch_size"], seed=given["seed"], progress=advance,
            logit_error=1e-4 if given["logit_error"] is None else given["logit_error"],
        )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb(
    "replay", examples=("draftproof audit replay", "draftproof audit replay --setting 'temperature=0.8' --num-seeds 8")
)
@engine_flag
@against_flag
@click.option("--num-seeds", type=Number(int), default=4, show_default=True, help="Of each prompt under each setting.")
@asked_flags
@logit_error_flag
@seed_flag
@html_flag
@engine_flags
def replay(**given: Any) -> None:
    """The same seeds, twice or two ways: are the streams equal?

    Differences that rounding explains, by the margin of the perturbed scores, are counted apart for draftproof's own
    engine, whose noise is known; with other engines every difference counts.
    """
    from draftproof.audit.replay import audit_replay

    settings = read_settings(given["setting"])
    llm = open_llm(given)
    ours = given["engine"] in ("ours", "plain") and given["against"] in ("ours", "plain")
    engine, other = open_audited(given["engine"], given, llm), open_audited(given["against"], given, llm)
    with counted_progress("auditing") as advance:
        found = audit_replay(
            engine, other, read_prompts(given["prompts"], llm), settings=settings, num_seeds=given["num_seeds"],
            scorer=open_scorer(llm, given["seed"], None) if ours else None, noise_of=_gumbel if ours else None,
            logit_error=1e-4 if given["logit_error"] is None else given["logit_error"],
            max_tokens=given["max_tokens"], batch_size=given["batch_size"], seed=given["seed"], progress=advance,
        )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb("paired", examples=("draftproof audit paired --engine http://one/v1 --against http://two/v1 --endpoint-model my",
                          "draftproof audit paired --num-samples 200 --length 4"))  # fmt: skip
@engine_flag
@against_flag
@click.option(
    "--num-samples", type=Number(int), default=64, show_default=True, help="Outputs of each prompt and engine."
)
@click.option("--length", type=Number(int), default=8, show_default=True, help="Tokens of each output.")
@asked_flags
@alpha_flag
@seed_flag
@html_flag
@engine_flags
def paired(**given: Any) -> None:
    """Two engines without weights at hand: do their outputs have one law?"""
    from draftproof.audit.paired import audit_paired

    settings = read_settings(given["setting"])
    if len(settings) != 1:
        raise ParameterError("setting", given["setting"], "one setting in paired mode")
    llm = open_llm(given)
    relaxed = {**given, "wants_ids": False}
    engine, other = open_audited(given["engine"], relaxed, llm), open_audited(given["against"], relaxed, llm)
    with counted_progress("auditing") as advance:
        said = Announcer(advance)
        found = audit_paired(
            engine, other, read_prompts(given["prompts"], llm), params=next(iter(settings.values())),
            num_samples=given["num_samples"], length=given["length"], alpha=given["alpha"],
            batch_size=given["batch_size"], seed=given["seed"], progress=said.progress, on_plan=said.on_plan,
        )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb(
    "state", examples=("draftproof audit state", "draftproof audit state --object my_engine:Sequence --num-trials 200")
)
@click.option("--object", "made", metavar="MODULE:CLASS",
              help="Instead of draftproof's target: something with append, rewind, state and vocab_size.")  # fmt: skip
@click.option("--num-trials", type=Number(int), default=32, show_default=True, help="Random contexts and passes.")
@click.option("--tolerance", type=Number(float), default=1e-3, show_default=True, help="Of logits, absolute.")
@seed_flag
@html_flag
@engine_flags
def state(**given: Any) -> None:
    """After a rejection and a rewind: does the engine stand where plain decoding would?"""
    from draftproof.audit.state import audit_state

    if given["made"] is not None:
        make, name = imported(given["made"]), given["made"]
    else:
        from draftproof.cli.audit_state import Slots

        make, name = Slots(open_llm({**given, "max_num_seqs": 2}, plain=True).target).take, "draftproof's target"
    with counted_progress("auditing") as advance:
        found = audit_state(
            make, name=name, num_trials=given["num_trials"], tolerance=given["tolerance"], seed=given["seed"],
            progress=advance,
        )  # fmt: skip
    report(found, as_json=given["json"], html=given["html"])


@verb("self", examples=("draftproof audit self", "draftproof audit self --full --json > self.json"))
@click.option("--full", is_flag=True, help="More tokens, and every mutant diluted to a total variation of 0.01.")
@seed_flag
@html_flag
def self_(**given: Any) -> None:
    """Audit the audit: every mutant must be caught, and no exact engine.

    The short run takes a minute or two on a core, the full one a quarter of an hour.
    """
    from draftproof.audit.selftest import run_self

    with counted_progress("running mutants") as advance:
        found = run_self(quick=not given["full"], seed=given["seed"], progress=advance)
    report(found, as_json=given["json"], html=given["html"])


def _gumbel(seed: int, position: int, vocab_size: int) -> Any:
    """[V] Gumbel values of draftproof's own field at an absolute position."""
    import numpy as np

    from draftproof.core import Key, Purpose
    from draftproof.noise import KeyedNoise

    words = KeyedNoise(seed).field(Key(Purpose.TARGET, position), vocab_size).astype(np.float64)
    return -np.log(-np.log1p(-(words + 0.5) / 2.0**32))


for _verb in (scored, rule, greedy, replay, paired, state, self_):
    audit.add_command(_verb)
