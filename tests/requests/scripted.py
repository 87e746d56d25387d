"""Engines whose target says a script, and drafters that follow it as far as a test wants.

Token i of the vocabulary is TEXTS[i]; the target's law after position p is the point mass on script[p], so that what a
request must emit is known without any engine: `expected` computes it token by token from the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftproof import LLM, SamplingParams
from draftproof.core import Draft
from draftproof.targets.toy import TableTarget
from draftproof.verify.tables import LawTable
from tests.engine.letters import Letters

EOS = 0
TEXTS = ["</s>", "xa", "b!", "c", "ab", "d", " ", "aab", "é", "", "zz"]
PROMPT = [5, 6]
FILLER = [3, 5, 6, 8, 10]


def scripted_table(script):
    """The law after PROMPT + script[:i] is the point mass on script[i]; fillers come after its end."""

    def weights(context):
        place = len(context) - len(PROMPT)
        token_id = script[place] if 0 <= place < len(script) else FILLER[place % len(FILLER)]
        return [int(other == token_id) for other in range(len(TEXTS))]

    return LawTable(len(TEXTS), weights, exact=False)


@dataclass
class ScriptDrafter:
    """Proposes the script; from the token `wrong_after` places into a draft on, something else (None: never).

    shape "chain" or "tree": in a tree every node has two children, and the right one is by turns the first and second.
    """

    script: list[int]
    wrong_after: int | None = None
    shape: str = "chain"
    method: str = "ngram"
    proposes_without_confidence: bool = True

    def propose(self, requests):
        return [self._chain(request) if self.shape == "chain" else self._tree(request) for request in requests]

    def _right(self, place, depth):
        token_id = self.script[place] if place < len(self.script) else FILLER[place % len(FILLER)]
        return (token_id + 1) % len(TEXTS) if self.wrong_after is not None and depth >= self.wrong_after else token_id

    def _chain(self, request):
        start = len(request.context_ids)
        tokens = [self._right(start - len(PROMPT) + depth, depth) for depth in range(request.num_tokens)]
        return Draft.of_token_ids(start, tokens)

    def _tree(self, request):
        start = len(request.context_ids)
        tokens, parents, spine = [], [], -1
        for depth in range(request.num_tokens // 2):
            right = self._right(start - len(PROMPT) + depth, depth)
            pair = [right, (right + 2) % len(TEXTS)]
            tokens += pair if depth % 2 else pair[::-1]
            parents += [spine, spine]
            spine = len(tokens) - (2 if depth % 2 else 1)
        return Draft.of_token_ids(start, tokens, parents)

    def observe(self, slot, context_ids, verdict):
        pass

    def release(self, slot):
        pass

    def confidence(self, slot, context_ids):
        return None


DRAFTERS = {
    "none": None,
    "chain": {},
    "chain, wrong at 0": {"wrong_after": 0},
    "chain, wrong at 2": {"wrong_after": 2},
    "tree": {"shape": "tree"},
    "tree, wrong at 1": {"shape": "tree", "wrong_after": 1},
}


def scripted_llm(script, drafter="chain", *, tokens=4, max_model_len=4096, num_slots=1, verifier="keyed"):
    """An LLM that says `script`; drafter: a name of DRAFTERS."""
    target = TableTarget(scripted_table(script), num_slots=num_slots, eos_token_ids=[EOS], max_model_len=max_model_len)
    tokenizer = Letters(TEXTS, specials=[EOS])
    if DRAFTERS[drafter] is None:
        return LLM.from_target(target, tokenizer)
    many = 2 * tokens if "tree" in drafter else tokens
    config = {"method": "ngram", "num_speculative_tokens": many, "draft_length": "fixed", "verifier": verifier}
    return LLM.from_target(
        target, tokenizer, speculative_config=config, drafter=ScriptDrafter(list(script), **DRAFTERS[drafter])
    )


@dataclass(frozen=True)
class Ending:
    """What a request must return."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stop_reason: str | int | None


def expected(script, params: SamplingParams, max_model_len=4096) -> Ending:
    """The ending by definition: tokens one by one, the whole text decoded and searched at each."""
    limit = max_model_len - len(PROMPT)
    limit = limit if params.max_tokens is None else min(limit, params.max_tokens)
    taken: list[int] = []
    shown = ""  # the text of tokens that count as text
    while True:
        place = len(taken)
        token_id = script[place] if place < len(script) else FILLER[place % len(FILLER)]
        taken.append(token_id)
        may_stop = len(taken) > params.min_tokens
        piece = "" if token_id == EOS and params.skip_special_tokens else TEXTS[token_id]
        if may_stop and ((token_id == EOS and not params.ignore_eos) or token_id in params.stop_token_ids):
            text = shown + (piece if params.include_stop_str_in_output else "")
            is_eos = token_id == EOS and not params.ignore_eos
            return Ending(tuple(taken), text, "stop", None if is_eos else token_id)
        before, shown = shown, shown + piece
        if may_stop:
            # A stop string counts if it is complete with this token and was not before.
            hits = [
                (at, -len(stop), stop)
                for stop in params.stop
                for at in range(len(shown))
                if shown.startswith(stop, at) and at + len(stop) > len(before)
            ]
            if hits:
                at, _, stop = min(hits)
                end = at + len(stop) if params.include_stop_str_in_output else at
                return Ending(tuple(taken), shown[:end], "stop", stop)
        if len(taken) >= limit:
            return Ending(tuple(taken), shown, "length", None)


def found(output) -> Ending:
    """The same of what an engine returned."""
    completion = output.outputs[0]
    return Ending(completion.token_ids, completion.text, completion.finish_reason, completion.stop_reason)
