"""A conversation never meets noise that it has used."""

from draftproof.cli.conversation import Conversation


def test_one_seed_serves_turns_that_follow_each_other() -> None:
    conversation = Conversation("be brief", 7)
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
    assert not conversation.begin_turn([0] * 10)
    conversation.end_turn([0] * 10, 5)
    assert not conversation.begin_turn([0] * 15)
    assert conversation.seed == 7


def test_a_prompt_that_ends_before_a_used_position_takes_a_fresh_seed() -> None:
    conversation = Conversation(None, 7)
    conversation.end_turn([0] * 10, 5)
    assert conversation.begin_turn([0] * 14)
    assert conversation.seed != 7
    assert not conversation.begin_turn([0] * 3)


def test_a_reset_takes_a_fresh_seed_and_forgets_the_messages() -> None:
    conversation = Conversation("be brief", 7)
    conversation.messages.append({"role": "user", "content": "hello"})
    conversation.end_turn([0] * 10, 5)
    conversation.reset()
    assert conversation.seed != 7
    assert conversation.messages == [{"role": "system", "content": "be brief"}]
    assert not conversation.begin_turn([0])


def test_without_a_seed_a_fresh_one_is_taken() -> None:
    assert Conversation(None, None).seed != Conversation(None, None).seed
