"""Steps that run ahead with one mistake each: the check that it is named for says so."""

import pytest

from draftproof.drafters.learned.following_block import FollowingBlock
from draftproof.drafters.learned.following_chain import FollowingChain
from draftproof.engine.ahead import loop
from draftproof.engine.ahead.draws import Draws
from draftproof.engine.ahead.loop import AheadLoop
from draftproof.engine.ahead.step import AheadStep
from draftproof.engine.engine import Engine
from draftproof.targets.hf import HFTarget
from draftproof.targets.static.following import ChainTables, FollowingForward
from tests.engine.ahead.checks import CHECKS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drafters")


def read_the_other_buffer(patch):
    read = AheadStep.read
    patch.setattr(AheadStep, "read", lambda step, turn: read(step, turn ^ 1))


def keep_what_a_late_stop_cut(patch):
    rewind = HFTarget.rewind

    def kept(target, slot, length, path=()):
        rewind(target, slot, min(length + 3, target.length(slot)), path)

    settle = AheadLoop._settle

    def settled(ahead, member):
        patch.setattr(HFTarget, "rewind", kept)
        settle(ahead, member)
        patch.setattr(HFTarget, "rewind", rewind)

    patch.setattr(AheadLoop, "_settle", settled)


def commit_one_token_too_few(patch):
    run = AheadStep._run

    def short(step):
        run(step)
        step._starts -= 1

    patch.setattr(AheadStep, "_run", short)


def draw_at_the_position_before(patch):
    verify = Draws.verify
    patch.setattr(Draws, "verify", lambda draws, logits, drafts, starts: verify(draws, logits, drafts, starts - 1))


def draft_over_other_noise(patch):
    draw = Draws.draw
    patch.setattr(Draws, "draw", lambda draws, logits, starts, first: draw(draws, logits, starts - 1, first))


def forget_who_the_requests_are(patch):
    patch.setattr(Draws, "use", lambda *_: None)


def leave_the_drafters_context_behind(patch):
    call = FollowingBlock.__call__
    patch.setattr(
        FollowingBlock,
        "__call__",
        lambda block, newest, starts, fed, *rest: call(block, newest, starts, fed * 0, *rest),
    )


def changed_chain(patch, change):
    call = FollowingChain.__call__
    patch.setattr(FollowingChain, "__call__", lambda chain, *given: call(chain, *change(*given)))


def leave_a_chains_entries_behind(patch):
    changed_chain(patch, lambda newest, starts, fed, *rest: (newest, starts, starts - 1, *rest))


def read_tokens_of_the_position_before(patch):
    changed_chain(patch, lambda *given: (*given[:4], given[4].roll(1, dims=1), *given[5:]))


def begin_without_the_last_entry(patch):
    patch.setattr(FollowingChain, "num_behind", 2)


def let_entries_see_what_follows(patch):
    forward = FollowingChain._forward

    def ahead(chain, ids, starts, *rest):
        kept, chain._columns = chain._columns, chain._columns.clone()
        chain._columns[1:] -= 1
        try:
            return forward(chain, ids, starts, *rest)
        finally:
            chain._columns = kept

    patch.setattr(FollowingChain, "_forward", ahead)


def say_too_much_of_the_drafters_context(patch):
    settle = AheadLoop._settle

    def settled(ahead, member):
        member.fed = len(member.request.context_ids)
        settle(ahead, member)

    patch.setattr(AheadLoop, "_settle", settled)


def keep_newcomers_waiting(patch):
    patch.setattr(AheadLoop, "_is_awaited", lambda _: False)


def abort_without_waiting(patch):
    patch.setattr(Engine, "_drain", lambda _: None)


def go_on_after_an_interrupt(patch):
    patch.setattr(AheadLoop, "forget", lambda _: None)


def write_where_the_slot_was(patch):
    use = FollowingForward.use

    def once(forward, slots):
        if not forward._known or forward._known[0] != list(slots):
            use(forward, slots)

    patch.setattr(FollowingForward, "use", once)


def read_one_key_too_few(patch):
    fill = ChainTables.fill

    def short(tables, *given):
        fill(tables, *given)
        tables._rows[:, 3] -= 1
        tables._rows[:, 4] -= 1

    patch.setattr(ChainTables, "fill", short)


def pass_over_faults(patch):
    read = AheadStep.read

    def faultless(step, turn):
        from draftproof.engine.ahead.step import Report

        return [Report(report.token_ids or (0,), report.drafted_ids, 0) for report in read(step, turn)]

    patch.setattr(AheadStep, "read", faultless)


def count_copies_as_requests(patch):
    begin = AheadStep.begin

    def begun(step, *given):
        begin(step, *given)
        step._num_real = step._num_requests

    patch.setattr(AheadStep, "begin", begun)


def give_copies_anothers_slot(patch):
    place = AheadStep.place
    patch.setattr(
        AheadStep, "place", lambda step, slots: place(step, [*slots, *slots[-1:] * (step._num_requests - len(slots))])
    )


def keep_a_length_for_good(patch):
    patch.setattr(loop, "num_steps", lambda _: None)


def tell_the_policy_nothing(patch):
    commit = AheadLoop._commit

    def silent(ahead, request, report):
        policy, request.length_policy = request.length_policy, None
        turn = commit(ahead, request, report)
        request.length_policy = policy
        return turn

    patch.setattr(AheadLoop, "_commit", silent)


def a_graph_for_every_size(patch):
    patch.setattr(AheadLoop, "_num_places", lambda _, num_requests, num_drafts: num_requests)


def run_others_ahead(patch):
    patch.setattr(AheadLoop, "_is_served", lambda _, member: not member.request.is_finished)


MUTANTS = {
    read_the_other_buffer: "together",
    commit_one_token_too_few: "together",
    draw_at_the_position_before: "together",
    draft_over_other_noise: "together",
    forget_who_the_requests_are: "together",
    leave_the_drafters_context_behind: "together",
    say_too_much_of_the_drafters_context: "together",
    read_one_key_too_few: "together",
    leave_a_chains_entries_behind: "chains",
    read_tokens_of_the_position_before: "chains",
    begin_without_the_last_entry: "chains",
    let_entries_see_what_follows: "chains",
    keep_a_length_for_good: "lengths",
    tell_the_policy_nothing: "lengths",
    count_copies_as_requests: "filled up",
    give_copies_anothers_slot: "filled up",
    a_graph_for_every_size: "filled up",
    write_where_the_slot_was: "moves",
    keep_what_a_late_stop_cut: "changes",
    keep_newcomers_waiting: "changes",
    abort_without_waiting: "changes",
    go_on_after_an_interrupt: "changes",
    pass_over_faults: "faults",
    run_others_ahead: "faults",
}


@pytest.mark.parametrize("check", CHECKS)
def test_nothing_is_wrong(folder, check):
    assert CHECKS[check](folder) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutants_are_caught(folder, monkeypatch, mutant):
    CHECKS[MUTANTS[mutant]](folder)
    mutant(monkeypatch)
    try:
        wrong = CHECKS[MUTANTS[mutant]](folder)
    except Exception as error:
        wrong = [f"{type(error).__name__}: {error}"]
    assert wrong
