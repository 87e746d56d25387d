"""Wrong twins of the tables, each caught by the comparison with packed forwards."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftproof.targets.hf import HFTarget
from draftproof.targets.static import tables
from draftproof.targets.static.tables import WORD_BITS
from tests.targets.models import tiny_model
from tests.targets.static.forwards import CASES, LENGTHS, filled, scored, windowed


def compare(model: Any, invariant: bool, spoil: Callable[[], None] = lambda: None) -> None:
    """Trees and chains, twice, so that what was written wrongly is read; the lengths are as before each time.

    spoil: called once the targets are there, whose own checks would refuse many a mutant.
    """
    packed, static = filled(model, static=False), filled(model, static=True)
    spoil()
    static.invariant = static._runner.static._invariant = invariant
    for requests in [*CASES.values(), *CASES.values()]:
        expected, found = scored(packed, requests), scored(static, requests)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))
    for kept, own in zip(packed.cache.groups, static.cache.groups, strict=True):
        columns = [untouched(target) for target in (static, packed)]
        torch.testing.assert_close(own.keys[:, :, columns[0]], kept.keys[:, :, columns[1]], rtol=0, atol=1e-4)


def untouched(target: HFTarget) -> torch.Tensor:
    """[columns] bool: all but those that tokens were scored in and rewound from, which static targets leave written."""
    found = torch.ones(target.cache.capacity, dtype=torch.bool)
    for slot, length in enumerate(LENGTHS):
        most = max(len(request.token_ids) for case in CASES.values() for request in case if request.slot == slot)
        begin = target.cache.extents.offsets[slot] + length
        found[begin : begin + most] = False
    return found


def fill_with(change: Any) -> Any:
    whole = tables.fill

    def fill(out: Any, plan: Any, bucket: Any) -> None:
        whole(out, plan, bucket)
        parts = np.split(out, np.cumsum(bucket.sizes)[:-1])
        change(plan, bucket, *parts[:-1])

    return fill


def padding_is_written(plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any) -> None:
    columns[columns < 0] = plan.columns[-1] + 1


def columns_of_a_neighbour(
    plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any
) -> None:
    columns[: len(plan.ids)] += 1


def positions_by_index(plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any) -> None:
    first = 0
    for count in plan.counts:
        positions[first : first + count] = positions[first] + np.arange(count)
        first += count


def nobody_sees_the_token_itself(
    plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any
) -> None:
    table = rows.reshape(-1, tables.ROW_FIELDS)
    table[:, 4] = np.maximum(table[:, 4] - 1, 0)


def siblings_see_each_other(
    plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any
) -> None:
    if plan.kind == tables.Kind.TREE:
        words = links.reshape(bucket.num_tokens, bucket.num_links).view(np.uint32)
        for token in range(len(plan.ids)):
            words[token, 0] |= np.uint32((1 << min(token + 1, WORD_BITS)) - 1)


def paths_are_chains(plan: Any, bucket: Any, ids: Any, positions: Any, columns: Any, rows: Any, links: Any) -> None:
    if plan.kind == tables.Kind.PATH:
        links.reshape(bucket.num_rows, bucket.num_links)[:] = np.arange(bucket.num_links)


MUTANTS = {
    "padding is written": (padding_is_written, False),
    "columns of a neighbour": (columns_of_a_neighbour, False),
    "positions by index": (positions_by_index, False),
    "nobody sees the token itself": (nobody_sees_the_token_itself, False),
    "siblings see each other": (siblings_see_each_other, False),
    "paths are chains": (paths_are_chains, True),
}


@pytest.mark.parametrize("invariant", [False, True])
def test_the_tables_pass(invariant):
    compare(windowed(), invariant)
    compare(tiny_model("llama"), invariant)


@pytest.mark.parametrize("name", list(MUTANTS))
def test_mutants_are_caught(name, monkeypatch):
    change, invariant = MUTANTS[name]
    spoiled = fill_with(change)
    with pytest.raises(AssertionError):
        compare(tiny_model("llama"), invariant, lambda: monkeypatch.setattr(tables, "fill", spoiled))
