"""The slotted cache: columns that slots share, growth, moves, copies, gathering, clearing."""

import random

import pytest
import torch

from draftproof.errors import ModelError
from draftproof.targets.cache import LayerShape, SlotCache
from draftproof.targets.extents import STEP, Extents, num_columns

SHAPES = [LayerShape(2, 4, 3, torch.float32, torch.device("cpu"))] * 2 + [
    LayerShape(1, 5, 5, torch.float32, torch.device("cpu"))
]


def make(num_slots: int = 3, max_columns: int = 4 * STEP) -> SlotCache:
    return SlotCache(SHAPES, num_slots, max_columns)


def write(cache: SlotCache, slot: int, values: list[float], start: int = 0) -> None:
    """Entries whose numbers are all the value, negated for values."""
    cache.reserve({slot: start + len(values)})
    begin = cache.extents.offsets[slot] + start
    for group in cache.groups:
        entries = torch.tensor(values)[None, None, :, None]
        group.keys[:, :, begin : begin + len(values)] = entries
        group.values[:, :, begin : begin + len(values)] = -entries
    cache.lengths[slot] = start + len(values)


def read(cache: SlotCache, slot: int) -> list[float]:
    """The slot's entries; fails where layers or heads, keys and values disagree."""
    begin, length = cache.extents.offsets[slot], cache.lengths[slot]
    found = cache.groups[0].keys[0, 0, begin : begin + length, 0]
    for group in cache.groups:
        assert (group.keys[:, :, begin : begin + length] == found[None, None, :, None]).all()
        assert (group.values[:, :, begin : begin + length] == -found[None, None, :, None]).all()
    return found.tolist()


def unused_columns_are_zero(cache: SlotCache) -> bool:
    used = torch.zeros(cache.capacity, dtype=torch.bool)
    for slot, length in enumerate(cache.lengths):
        used[cache.extents.offsets[slot] : cache.extents.offsets[slot] + length] = True
    return all(bool((buffer[:, :, ~used] == 0).all()) for g in cache.groups for buffer in (g.keys, g.values))


def test_slots_grow_and_keep_their_entries() -> None:
    cache = make()
    write(cache, 0, [1.0, 2.0])
    write(cache, 1, [3.0])
    assert cache.capacity <= 2 * STEP
    write(cache, 0, [5.0] * STEP, start=2)
    assert read(cache, 0) == [1.0, 2.0, *[5.0] * STEP] and read(cache, 1) == [3.0]
    assert cache.capacity <= 4 * STEP and unused_columns_are_zero(cache)


def test_whatever_fits_by_its_sum_fits() -> None:
    """Holes are closed: 2 + 1 + 1 steps after slots of other sizes came and went."""
    cache = make()
    for slot, value in ((0, 1.0), (1, 2.0), (2, 3.0)):
        write(cache, slot, [value] * 5)
    cache.free(0)
    write(cache, 2, [4.0] * STEP, start=5)
    write(cache, 0, [7.0])
    assert read(cache, 0) == [7.0] and read(cache, 1) == [2.0] * 5 and read(cache, 2) == [3.0] * 5 + [4.0] * STEP
    with pytest.raises(ModelError, match="holds 1024 tokens"):
        cache.reserve({1: STEP + 1})
    assert read(cache, 1) == [2.0] * 5 and unused_columns_are_zero(cache)


def test_several_slots_grow_in_one_call() -> None:
    cache = make(max_columns=6 * STEP)
    for slot in range(3):
        write(cache, slot, [float(slot + 1)] * 3)
    cache.reserve(dict.fromkeys(range(3), 2 * STEP))
    assert [read(cache, slot) for slot in range(3)] == [[1.0] * 3, [2.0] * 3, [3.0] * 3]
    assert sorted(cache.extents.offsets) == [0, 2 * STEP, 4 * STEP] and unused_columns_are_zero(cache)


@pytest.mark.parametrize("seed", range(8))
def test_random_growth_and_release_loses_nothing(seed: int) -> None:
    source, cache, model = random.Random(seed), make(4, 7 * STEP), {}
    for turn in range(60):
        slot = source.randrange(4)
        if source.random() < 0.3 and model.get(slot):
            cache.free(slot)
            model[slot] = []
        kept = model.setdefault(slot, [])
        added = [float(turn + 1)] * source.randrange(1, 400)
        others = sum(num_columns(len(entries)) for index, entries in model.items() if index != slot)
        if others + num_columns(len(kept) + len(added)) > cache.max_columns:
            with pytest.raises(ModelError):
                cache.reserve({slot: len(kept) + len(added)})
            continue
        write(cache, slot, added, start=len(kept))
        kept += added
        assert all(read(cache, index) == entries for index, entries in model.items())
    assert unused_columns_are_zero(cache)


def test_copy_shares_a_prefix_and_drops_what_was_there() -> None:
    cache = make()
    write(cache, 0, [1.0, 2.0, 3.0])
    write(cache, 1, [9.0] * 5)
    cache.copy(0, 1, 2)
    assert read(cache, 1) == [1.0, 2.0] and read(cache, 0) == [1.0, 2.0, 3.0] and unused_columns_are_zero(cache)
    write(cache, 1, [8.0], start=2)
    assert read(cache, 0) == [1.0, 2.0, 3.0]


def test_gather_moves_a_path_in_place() -> None:
    cache = make()
    write(cache, 0, [50.0])
    write(cache, 1, [float(i) for i in range(8)])
    cache.gather(1, 2, [0, 2, 5])
    assert read(cache, 1) == [0, 1, 2, 4, 7, 5, 6, 7] and read(cache, 0) == [50.0]


def test_clear_and_free_zero_one_slot_only() -> None:
    cache = make()
    write(cache, 0, [1.0] * 4)
    write(cache, 1, [2.0] * 4)
    cache.clear(0, 1, 3)
    assert read(cache, 0) == [1, 0, 0, 1] and read(cache, 1) == [2.0] * 4
    cache.free(1)
    assert read(cache, 0) == [1, 0, 0, 1] and unused_columns_are_zero(cache)


def test_extents_extend_in_place_before_they_move() -> None:
    moves: list[tuple[int, int, int]] = []
    extents = Extents(2, 8 * STEP, lambda *move: moves.append(move))
    assert extents.reserve(0, 10) and extents.reserve(0, STEP + 1) and not moves
    assert extents.reserve(1, 1) and extents.offsets == [0, 2 * STEP]
    assert extents.reserve(0, 2 * STEP + 1) and moves == [(0, 0, 3 * STEP)]
    assert not extents.reserve(1, 4 * STEP) and extents.sizes == [3 * STEP, STEP]
