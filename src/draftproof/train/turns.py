"""How a chat begins, how a user's turn ends and the model's begins: token ids, read off the model's own template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.errors import ParameterError

_MARK = "\u2063draftproof\u2063"


@dataclass(frozen=True, slots=True)
class Turns:
    """opening: from the beginning to where the user's text goes. reply: from the end of the user's text, the token
    that ends a turn included, to where the model's text goes. end_ids: tokens that end a turn. system_openings: as
    opening, each with a system prompt of its own. stems: first words of users' turns."""

    opening: tuple[int, ...]
    reply: tuple[int, ...]
    end_ids: frozenset[int]
    system_openings: tuple[tuple[int, ...], ...] = ()
    stems: tuple[tuple[int, ...], ...] = ()

    @property
    def is_chat(self) -> bool:
        """False for a model without a template: documents of plain text."""
        return bool(self.reply)

    def reply_after_end(self) -> tuple[int, ...]:
        """What follows once the model has ended the user's turn by itself."""
        return self.reply[1:] if self.reply and self.reply[0] in self.end_ids else self.reply


def read_turns(
    tokenizer: Any, eos_token_ids: tuple[int, ...], systems: Sequence[str] = (), stems: Sequence[str] = ()
) -> Turns:
    """systems: system prompts for `system_openings`. stems: texts for `stems`.

    For a tokenizer without a chat template: no turns, documents begin with BOS or else an end token.
    Raises ParameterError for a template that doesn't show the user's text, or a model without any special token.
    """
    end_ids = frozenset(eos_token_ids)
    if not getattr(tokenizer, "chat_template", None):
        first = getattr(tokenizer, "bos_token_id", None)
        first = first if first is not None else next(iter(sorted(end_ids)), None)
        if first is None:
            raise ParameterError("target", "a tokenizer", "one with a chat template, a BOS or an end token")
        return Turns((int(first),), (), end_ids)
    before, after = _around_user(tokenizer, [])
    openings = [_around_user(tokenizer, [{"role": "system", "content": system}])[0] for system in systems]
    return Turns(
        tuple(_ids(tokenizer, before)),
        tuple(_ids(tokenizer, after)),
        end_ids,
        tuple(tuple(_ids(tokenizer, text)) for text in openings),
        tuple(tuple(_ids(tokenizer, text)) for text in stems),
    )


def _around_user(tokenizer: Any, messages: list[dict[str, str]]) -> tuple[str, str]:
    """What stands before and after the user's text, to where the reply begins."""
    text: str = tokenizer.apply_chat_template(
        [*messages, {"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
    )
    before, mark, after = text.partition(_MARK)
    if not mark:
        raise ParameterError("target", "a chat template", "one that shows the user's text as it is")
    return before, after


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
