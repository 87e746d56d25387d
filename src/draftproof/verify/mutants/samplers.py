"""Mutants of samplers that remember: rows made with another row's state or tokens, after T22 to T35."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from draftproof.core import ROOT, Draft, Law, Noise, PointMass
from draftproof.params import SamplingParams
from draftproof.sampling import History
from draftproof.verify import get_verifier
from draftproof.verify.chain_settings import SAMPLER_SETTINGS
from draftproof.verify.chain_tables import ChainTable
from draftproof.verify.exact import Step
from draftproof.verify.mutants.base import PROMPT, Mutant, enumerated, production
from draftproof.verify.proposals import Fixed, Proposer, Ranked
from draftproof.verify.tables import Context, random_logits

_MIROSTAT: Final = {"mirostat": 2, "mirostat_tau": 0.75, "mirostat_eta": 1.0}
_DRY: Final = {"dry_multiplier": 1.5, "dry_base": 2.0, "dry_allowed_length": 1, "dry_sequence_breakers": ()}
_STATE: Final = SAMPLER_SETTINGS["processor with a state"]

RowsOf = Callable[[ChainTable, Context, Draft], list[Law]]
"""(target, the pass's context, draft) -> the rows that a wrong engine makes."""


def target_of(fields: Mapping[str, Any], seed: str = "3 target") -> ChainTable:
    return ChainTable(2, random_logits(2, seed), SamplingParams(**fields))


def plain_drafter(target: ChainTable) -> Proposer:
    return Ranked(ChainTable(2, random_logits(2, "3 draft"), SamplingParams()), (1, 1))


def _step(verifier: str, target: ChainTable, drafter: Proposer, rows_of: RowsOf) -> Step:
    def step(context: Context, noise: Noise) -> tuple[int, ...]:
        draft = drafter(context, noise)
        return get_verifier(verifier).verify(draft, rows_of(target, context, draft), noise).token_ids

    return step


def _mutant(name: str, after: str, fields: dict[str, Any], rows_of: RowsOf, verifier: str = "match") -> Mutant:
    target = target_of(fields)
    drafter = plain_drafter(target)
    return Mutant(
        name,
        after,
        enumerated(_step(verifier, target, drafter, rows_of), target, 2),
        production(verifier, target, drafter, 2),
    )


def _with_states(history: History, other: History) -> History:
    """The tokens of `history` with the states of `other`."""
    return History(history.prompt_ids, history.output_ids, other.states)


def _frozen_over_the_block(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """Every row sees what was there before the block."""
    rows = []
    for node in range(ROOT, len(draft)):
        path = context + tuple(draft.token_ids[i] for i in draft.path_to(node))
        rows += target.rows_from(target.history(context), path, Draft.empty(len(path)))
    return rows


def _frozen_states(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """Tokens are right in every row, states are those before the block."""
    return [_alone(target, context, draft, node, target.history(context)) for node in range(ROOT, len(draft))]


def _advanced_by_drafts(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """All drafts advance the state first, accepted or not, and every row is made with what comes out."""
    last = target.history(context + draft.token_ids)
    return [_alone(target, context, draft, node, last) for node in range(ROOT, len(draft))]


def _bonus_row_first(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """The bonus row is made first and leaves its state to the rows before it."""
    rows = target.rows_from(target.history(context), context, draft)
    late = target.history(context + draft.token_ids)
    return [_alone(target, context, draft, node, late) for node in range(ROOT, len(draft) - 1)] + rows[-1:]


def _begun_again(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """Every pass begins with the first state."""
    history = _with_states(target.history(context), target.row_params.first_history(PROMPT))
    return target.rows_from(history, context, draft)


def _lags_by_a_token(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
    """The newest token has not reached the state when the pass begins."""
    earlier = target.history(context[:-1]) if len(context) > 1 else target.history(context)
    return target.rows_from(_with_states(target.history(context), earlier), context, draft)


def _alone(target: ChainTable, context: Context, draft: Draft, node: int, states: History) -> Law:
    path = context + tuple(draft.token_ids[i] for i in draft.path_to(node))
    [law] = target.rows_from(_with_states(target.history(path), states), path, Draft.empty(len(path)))
    return law


def _surprise_of_the_raw_row() -> Mutant:
    """mu moves by the token's probability before the cut."""
    fields = {**_MIROSTAT, "mirostat_eta": 1.0}
    target = target_of(fields)
    raw = target_of({})

    def history(context: Context) -> History:
        found = target.row_params.first_history(context[:1])
        for end in range(1, len(context)):
            found = found.extended(context[end : end + 1], (raw.law(context[:end]),))
        return found

    def rows(table: ChainTable, context: Context, draft: Draft) -> list[Law]:
        path_of = [context + tuple(draft.token_ids[i] for i in draft.path_to(n)) for n in range(ROOT, len(draft))]
        return [table.rows_from(history(path), path, Draft.empty(len(path)))[0] for path in path_of]

    return _mutant(
        "mirostat: surprise of the uncut row", "design rule: the surprise is of the law drawn from", fields, rows
    )


def _without(fields: dict[str, Any]) -> RowsOf:
    """Draft rows without these samplers; the bonus row has them."""
    plain = target_of({})

    def rows(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
        right = target.rows_from(target.history(context), context, draft)
        return [*plain.rows_from(plain.history(context), context, draft)[:-1], right[-1]]

    return rows


def _ngrams_frozen() -> Mutant:
    """Drafts 0 0 0 after 0: the fourth 0 would be allowed for good, had the rows not seen the drafts before them."""
    target = target_of(dict(SAMPLER_SETTINGS["n-grams of 4"]))
    drafter = Fixed((1, 1, 1), (0, 0, 0))
    return Mutant(
        "n-grams frozen over the block",
        "T28: vllm-project/vllm#31908",
        enumerated(_step("match", target, drafter, _frozen_over_the_block), target),
        production("match", target, drafter),
    )


def _hidden_state() -> Mutant:
    """A processor that counts its calls, let through: the rows of drafts move it, committed or not."""
    target = target_of(_STATE)
    drafter = plain_drafter(target)

    def rows(table: ChainTable, context: Context, draft: Draft) -> list[Law]:
        found = []
        for calls, node in enumerate(range(ROOT, len(draft))):
            path = context + tuple(draft.token_ids[i] for i in draft.path_to(node))
            # The state of as many tokens as there were calls, instead of the path's own.
            seen = table.history((*context, *(draft.token_ids[0],) * min(calls + 1, 2)))
            found.append(_alone(table, path, Draft.empty(len(path)), ROOT, seen))
        return found

    return Mutant(
        "a processor's state counts calls, not tokens",
        "T35: vllm-project/vllm#41768 (a stateful processor advanced by rows)",
        enumerated(_step("match", target, drafter, rows), target, 2),
        production("match", target, drafter, 2),
    )


def _point_mass_history() -> Mutant:
    """Drafted tokens advance mirostat as if they were certain: their surprise is taken for 0."""

    def rows(target: ChainTable, context: Context, draft: Draft) -> list[Law]:
        found = []
        for node in range(ROOT, len(draft)):
            tokens = tuple(draft.token_ids[i] for i in draft.path_to(node))
            history = target.history(context).extended(tokens, [PointMass(token_id) for token_id in tokens])
            found += target.rows_from(history, context + tokens, Draft.empty(len(context) + len(tokens)))
        return found

    return _mutant("mirostat: drafted tokens count as certain", "T22 for mirostat's state", _MIROSTAT, rows)


def build() -> tuple[Mutant, ...]:
    """The mutants; a function, since the chain needs torch."""
    state, dry, low = dict(_STATE), dict(_DRY), {**_MIROSTAT, "mirostat_tau": 0.6}
    return (
        _mutant("mirostat: state frozen over the block", "T22 for mirostat's state", _MIROSTAT, _frozen_states),
        _mutant("mirostat: advanced by rejected drafts", "T35: a state not restored", _MIROSTAT, _advanced_by_drafts),
        _mutant("mirostat: begins again in every pass", "T23 for mirostat's state", _MIROSTAT, _begun_again),
        _mutant("mirostat: one token behind", "T28: vllm-project/vllm#52311 (a shift by one)", low, _lags_by_a_token),
        _surprise_of_the_raw_row(),
        _point_mass_history(),
        _mutant("processor: bonus row first", "T35: vllm-project/vllm#41768", state, _bonus_row_first),
        _mutant("processor: advanced by rejected drafts", "T35: a state not restored", state, _advanced_by_drafts),
        _mutant("processor: state frozen over the block", "T22 for a processor's state", state, _frozen_states),
        _hidden_state(),
        _mutant("DRY frozen over the block", "T22: sgl-project/sglang#40244", dry, _frozen_over_the_block),
        _mutant("DRY on the bonus row only", "T25: a sampler on the bonus row only", dry, _without(dry)),
        _ngrams_frozen(),
    )
