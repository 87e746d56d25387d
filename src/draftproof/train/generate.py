"""Text from the target itself: many sequences at once, each row refilled as soon as its document ends.

All rows step together through the columns of a shard (`rows.py`). A row's document begins at some column, sees no
column before it, and its positions count from there, so a new document may begin in any row at any step and no row
ever waits.
Forced tokens (a prompt, the beginning of the reply) and sampled ones take the same road: at each step a row appends
the next forced token if there is one, else what it samples. A user's turn that no prompt fills is sampled too.

Sampling: temperature, then top-p (`sampling.py`). A reply has its document's temperature, a user's turn that the target
writes one for all of them: a cold one would be the same again and again. A shard is a function of (target, settings,
seed, shard index) and of the device's arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from draftproof.errors import ParameterError
from draftproof.train.corpus import Document, read_metadata, shard_path, write_shard
from draftproof.train.rows import Rows, choose_rows
from draftproof.train.target import FrozenTarget
from draftproof.train.turns import Turns


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
    made, index, rows = 0, 0, None
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
            rows = rows or rows_of(target, settings)
            documents = sample_documents(rows, turns, prompts, settings, index, target.vocab_size)
            total = sum(len(document.token_ids) for document in documents)
            write_shard(path, documents, stated | {"shard": index, "num_tokens": total})
        made += int(str(read_metadata(path)["num_tokens"]))
        index += 1
        yield index, made


def rows_of(target: FrozenTarget, settings: GenerationSettings) -> Rows:
    """What steps the rows of these settings; the target may be of no other use afterwards."""
    return choose_rows(
        target,
        num_rows=settings.batch_size,
        num_columns=settings.num_columns,
        max_length=settings.max_length,
        top_p=settings.top_p,
    )


def sample_documents(
    rows: Rows,
    turns: Turns,
    prompts: Sequence[Sequence[int]],
    settings: GenerationSettings,
    shard: int,
    vocab_size: int,
) -> list[Document]:
    """The documents of one shard; the last of each row may be cut short."""
    state = _Rows(turns, prompts, settings, np.random.default_rng([settings.seed, shard]), vocab_size)
    rows.begin((settings.seed << 20) + shard)
    documents: list[Document] = []
    drawn = np.zeros(settings.batch_size, dtype=np.int64)
    for column in range(settings.num_columns):
        begins = state.begins.copy()
        ids, done = state.advance(drawn)
        documents += [state.document(row) for row in done]
        state.restart(done)
        drawn = rows(column, ids, begins, state.temperatures)
    documents += [state.document(row) for row in range(settings.batch_size) if state.length(row) > 1]
    return documents


class _Rows:
    """All rows' documents so far, at one column after the other. forced: tokens that come next, ends of rows of
    `_forced`."""

    def __init__(
        self,
        turns: Turns,
        prompts: Sequence[Sequence[int]],
        settings: GenerationSettings,
        source: np.random.Generator,
        vocab_size: int,
    ) -> None:
        self._turns, self._prompts, self._settings, self._source = turns, prompts, settings, source
        count, columns = settings.batch_size, settings.num_columns
        most = max(map(len, (turns.opening, *turns.system_openings)))
        most += max([*map(len, turns.stems), *(len(prompt) + len(turns.reply) for prompt in prompts), 0])
        self._forced = np.zeros((count, max(most, len(turns.reply))), dtype=np.int64)
        self._num_forced, self._next_forced = np.zeros((2, count), dtype=np.int64)
        self.begins = np.zeros(count, dtype=np.int64)
        self._in_reply = np.zeros(count, dtype=np.bool_)
        self._reply_temperatures = np.ones(count, dtype=np.float32)
        self._token_ids = np.zeros((count, columns), dtype=np.int64)
        self._sampled = np.zeros((count, columns), dtype=np.bool_)
        self._ends = np.zeros(vocab_size, dtype=np.bool_)
        self._ends[sorted(turns.end_ids)] = True
        self._of_users = np.float32(settings.user_temperature or max(settings.temperatures))
        self._places = np.arange(count)
        self._column = -1
        for row in range(count):
            self._restart(row, 0)

    @property
    def temperatures(self) -> NDArray[np.float32]:
        """[rows] of the next draw."""
        return np.where(self._in_reply, self._reply_temperatures, self._of_users)

    def advance(self, drawn: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
        """The next column: each row's forced token, or else what was drawn for it. Returns the tokens [rows], and the
        rows whose documents end with them."""
        self._column += 1
        is_forced = self._next_forced < self._num_forced
        forced = self._forced[self._places, np.minimum(self._next_forced, self._forced.shape[1] - 1)]
        ids = np.where(is_forced, forced, drawn)
        self._next_forced += is_forced
        self._token_ids[:, self._column], self._sampled[:, self._column] = ids, ~is_forced
        ended = ~is_forced & self._ends[ids]
        turn_over = ended & ~self._in_reply & self._turns.is_chat
        for row in np.flatnonzero(turn_over):
            self._force(int(row), self._turns.reply_after_end())
            self._in_reply[row] = True
        is_full = self._column - self.begins + 1 >= self._settings.max_length
        return ids, np.flatnonzero(~turn_over & (ended | is_full)).tolist()

    def restart(self, rows: Sequence[int]) -> None:
        """New documents, from the next column on."""
        for row in rows:
            self._restart(row, self._column + 1)

    def document(self, row: int) -> Document:
        """The row's, up to this column."""
        where = slice(int(self.begins[row]), self._column + 1)
        return Document(self._token_ids[row, where].copy(), self._sampled[row, where].copy())

    def length(self, row: int) -> int:
        """Of the row's document, up to this column."""
        return self._column + 1 - int(self.begins[row])

    def _restart(self, row: int, begin: int) -> None:
        turns, settings, source = self._turns, self._settings, self._source
        with_prompt = len(self._prompts) > 0 and source.random() < settings.prompt_share
        with_system = not with_prompt and len(turns.system_openings) > 0 and source.random() < settings.system_share
        forced = list(
            turns.system_openings[int(source.integers(len(turns.system_openings)))] if with_system else turns.opening
        )
        if with_prompt:
            forced += self._prompts[int(source.integers(len(self._prompts)))]
            forced += turns.reply
        elif turns.is_chat and len(turns.stems) > 0 and source.random() < settings.stem_share:
            forced += turns.stems[int(source.integers(len(turns.stems)))]
        self._force(row, forced)
        self.begins[row] = begin
        self._in_reply[row] = with_prompt or not turns.is_chat
        self._reply_temperatures[row] = settings.temperatures[int(source.integers(len(settings.temperatures)))]

    def _force(self, row: int, token_ids: Sequence[int]) -> None:
        self._forced[row, : len(token_ids)] = token_ids
        self._num_forced[row], self._next_forced[row] = len(token_ids), 0
