"""Text from the target itself: many sequences at once, each row refilled as soon as its document ends.

All rows step together through the columns of one cache. A row's document begins at some column, sees no column before
it, and its positions count from there, so a new document may begin in any row at any step and no row ever waits.
Forced tokens (a prompt, the beginning of the reply) and sampled ones take the same road: at each step a row appends
the next forced token if there is one, else what it samples. A user's turn that no prompt fills is sampled too.

Sampling: temperature, then top-p (`sampling.py`). A reply has its document's temperature, a user's turn that the target
writes one for all of them: a cold one would be the same again and again. A shard is a function of (target, settings,
seed, shard index) and of the device's arithmetic.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from draftproof.errors import ParameterError
from draftproof.train.corpus import Document, read_metadata, shard_path, write_shard
from draftproof.train.sampling import choose_sampler
from draftproof.train.target import FrozenTarget
from draftproof.train.turns import Turns

_KEY_STEP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationSettings:
    """batch_size: rows. num_columns: steps of a shard. max_length: of a document. prompt_share: of documents that begin
    with a prompt; the others begin at the bare user turn. system_share: of the others that begin with one of the
    system prompts. stem_share: of the others whose user's turn begins with given words, which the target goes on from.
    temperatures: a reply is sampled at one of them; user_temperature: of users' turns, the highest of
    the others if None."""

    batch_size: int = 512
    num_columns: int = 1024
    max_length: int = 512
    prompt_share: float = 0.5
    system_share: float = 0.0
    stem_share: float = 0.0
    temperatures: tuple[float, ...] = (1.0,)
    user_temperature: float | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1 or not 2 <= self.max_length or self.num_columns < 2:
            raise ParameterError("batch_size, num_columns, max_length", (self.batch_size, self.num_columns,
                                 self.max_length), "1, 2 and 2, or more")  # fmt: skip
        for name in ("prompt_share", "system_share", "stem_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ParameterError(name, getattr(self, name), "between 0 and 1")
        if not self.temperatures or not all(temperature > 0.0 for temperature in self.temperatures):
            raise ParameterError("temperatures", self.temperatures, "above 0, one or more: training text is sampled")
        if self.user_temperature is not None and not self.user_temperature > 0.0:
            raise ParameterError("user_temperature", self.user_temperature, "above 0")
        if not 0.0 < self.top_p <= 1.0:
            raise ParameterError("top_p", self.top_p, "above 0 and at most 1")


def generate_corpus(
    target: FrozenTarget,
    turns: Turns,
    prompts: Sequence[Sequence[int]],
    folder: Path,
    settings: GenerationSettings,
    *,
    num_tokens: int,
    is_time_up: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, int]]:
    """Write shards until the folder holds `num_tokens` tokens, or `is_time_up` after a shard; yields (shards, tokens).

    prompts: token ids of users' texts. Shards that are there already are kept and counted: an interrupted run goes on
    where it was. Raises ParameterError where they were made with other settings.
    """
    made, index = 0, 0
    stated: dict[str, object] = {"target": target.name, "settings": json.loads(json.dumps(asdict(settings)))}
    while made < num_tokens:
        path = shard_path(folder, index)
        if path.is_file():
            found = read_metadata(path)
            if {key: found.get(key) for key in stated} != stated:
                raise ParameterError(
                    "out", str(folder), "an empty folder or one made with the same settings",
                    f"{path.name} was made with {found.get('settings')} from {found.get('target')}",
                )  # fmt: skip
        else:
            if is_time_up():
                return
            documents = sample_documents(target, turns, prompts, settings, index)
            total = sum(len(document.token_ids) for document in documents)
            write_shard(path, documents, stated | {"shard": index, "num_tokens": total})
        made += int(str(read_metadata(path)["num_tokens"]))
        index += 1
        yield index, made


@dataclass(slots=True)
class _Row:
    """One row's document so far. forced: tokens that come next. in_reply: the user's turn is over."""

    begin: int
    forced: deque[int]
    in_reply: bool
    temperature: float
    token_ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)

    def document(self) -> Document:
        return Document(np.array(self.token_ids, dtype=np.int64), np.array(self.sampled, dtype=np.bool_))


@torch.no_grad()
def sample_documents(
    target: FrozenTarget, turns: Turns, prompts: Sequence[Sequence[int]], settings: GenerationSettings, shard: int
) -> list[Document]:
    """The documents of one shard; the last of each row may be cut short."""
    source = np.random.default_rng([settings.seed, shard])
    draw = choose_sampler(target.device, settings.batch_size, settings.top_p, (settings.seed << 20) + shard)
    of_users = settings.user_temperature or max(settings.temperatures)
    rows = [_new_row(0, turns, prompts, settings, source) for _ in range(settings.batch_size)]
    documents: list[Document] = []
    forward = _Forward(target, settings)
    begins = np.zeros(settings.batch_size, dtype=np.int64)
    sampled_ids: list[int] | None = None
    for column in range(settings.num_columns):
        next_ids = np.zeros(settings.batch_size, dtype=np.int64)
        for index, row in enumerate(rows):
            if sampled_ids is not None and not row.forced and row.token_ids:
                token_id, is_sampled = sampled_ids[index], True
            else:
                token_id, is_sampled = row.forced.popleft(), False
            row.token_ids.append(token_id)
            row.sampled.append(is_sampled)
            next_ids[index] = token_id
            ended = is_sampled and token_id in turns.end_ids
            if ended and turns.is_chat and not row.in_reply:
                row.forced, row.in_reply = deque(turns.reply_after_end()), True
            elif ended or len(row.token_ids) >= settings.max_length:
                documents.append(row.document())
                rows[index] = _new_row(column + 1, turns, prompts, settings, source)
        logits = forward(column, next_ids, begins)
        sampled_ids = draw(logits, [row.temperature if row.in_reply else of_users for row in rows], column)
        begins = np.array([row.begin for row in rows], dtype=np.int64)
    documents += [row.document() for row in rows if len(row.token_ids) > 1]
    return documents


def _new_row(
    begin: int,
    turns: Turns,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    source: np.random.Generator,
) -> _Row:
    with_prompt = len(prompts) > 0 and source.random() < settings.prompt_share
    with_system = not with_prompt and len(turns.system_openings) > 0 and source.random() < settings.system_share
    forced = deque(
        turns.system_openings[int(source.integers(len(turns.system_openings)))] if with_system else turns.opening
    )
    if with_prompt:
        forced.extend(prompts[int(source.integers(len(prompts)))])
        forced.extend(turns.reply)
    elif turns.is_chat and len(turns.stems) > 0 and source.random() < settings.stem_share:
        forced.extend(turns.stems[int(source.integers(len(turns.stems)))])
    temperature = settings.temperatures[int(source.integers(len(settings.temperatures)))]
    return _Row(begin, forced, with_prompt or not turns.is_chat, temperature)


class _Forward:
    """One token of every row per call: logits [rows, V]."""

    def __init__(self, target: FrozenTarget, settings: GenerationSettings) -> None:
        columns = _KEY_STEP * -(-settings.num_columns // _KEY_STEP)
        self.target, self.num_rows = target, settings.batch_size
        self.cache = target.cache(settings.batch_size, columns)
        self.columns = torch.arange(columns, device=target.device)

    def __call__(self, column: int, next_ids: Any, begins: Any) -> torch.Tensor:
        ids, first = torch.from_numpy(np.stack((next_ids, begins))).to(self.target.device)
        key_length = _KEY_STEP * (column // _KEY_STEP + 1)
        self.cache.prepare(range(self.num_rows), [column] * self.num_rows, 1, key_length)
        keys = self.columns[:key_length]
        seen = (keys >= first[:, None]) & (keys <= column)
        return self.target.next_logits(self.cache, ids, column - first, seen, (column - keys).expand_as(seen))
