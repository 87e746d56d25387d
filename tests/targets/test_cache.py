"""The slotted cache: lengths, growth, ragged writes, gathering, clearing."""

import torch

from draftproof.targets.cache import GROWTH_STEP, LayerShape, SlotCache

SHAPES = [LayerShape(2, 4, 3, torch.float32, torch.device("cpu"))] * 2 + [
    LayerShape(1, 5, 5, torch.float32, torch.device("cpu"))
]


def make(num_slots: int = 3, max_length: int = 2000) -> SlotCache:
    return SlotCache(SHAPES, num_slots, max_length)


def states(layer: int, rows: int, width: int, offset: float) -> tuple[torch.Tensor, torch.Tensor]:
    shape = SHAPES[layer]
    base = torch.arange(rows * width, dtype=torch.float32).reshape(rows, 1, width, 1) + offset
    keys = base.expand(rows, shape.heads, width, shape.key_dim)
    return keys.clone(), -base.expand(rows, shape.heads, width, shape.value_dim).clone()


def write(cache: SlotCache, slots: list[int], starts: list[int], width: int, key_length: int, offset: float):
    cache.prepare(slots, starts, width, key_length)
    return [cache.update(*states(layer, len(slots), width, offset), layer) for layer in range(len(SHAPES))]


def test_one_row_writes_at_its_start_and_reads_from_zero() -> None:
    cache = make()
    write(cache, [1], [0], 4, 4, 10.0)
    for keys, values in write(cache, [1], [4], 2, 6, 50.0):
        assert keys[0, 0, :, 0].tolist() == [10, 11, 12, 13, 50, 51]
        assert values[0, 0, :, 0].tolist() == [-10, -11, -12, -13, -50, -51]


def test_ragged_rows_write_at_their_own_starts_and_leave_other_slots_alone() -> None:
    cache = make()
    write(cache, [0, 1, 2], [0, 0, 0], 6, 6, 0.0)
    for keys, values in write(cache, [2, 0], [3, 5], 2, 7, 100.0):
        assert keys[0, 0, :, 0].tolist() == [12, 13, 14, 100, 101, 17, 0]
        assert keys[1, 0, :, 0].tolist() == [0, 1, 2, 3, 4, 102, 103]
        assert torch.equal(values[..., :1], -keys[..., :1])
    for keys, _ in write(cache, [1], [6], 1, 7, 200.0):
        assert keys[0, 0, :, 0].tolist() == [6, 7, 8, 9, 10, 11, 200]


def test_growth_keeps_entries_and_stops_at_the_maximum() -> None:
    cache = make(max_length=700)
    write(cache, [0], [0], 3, 3, 1.0)
    assert cache.capacity == GROWTH_STEP
    write(cache, [0], [300], 1, 301, 9.0)
    assert cache.capacity == 2 * GROWTH_STEP
    for keys, _ in write(cache, [0], [600], 1, 601, 7.0):
        assert keys[0, 0, [0, 1, 2, 300, 600], 0].tolist() == [1, 2, 3, 9, 7]
        assert keys[0, 0, 3:300].abs().sum() == 0
    assert cache.capacity == 700


def test_gather_moves_a_path_in_place() -> None:
    cache = make()
    write(cache, [1], [0], 8, 8, 0.0)
    cache.gather(1, 2, [0, 2, 5])
    for keys, values in write(cache, [1], [5], 1, 6, 90.0):
        assert keys[0, 0, :, 0].tolist() == [0, 1, 2, 4, 7, 90]
        assert torch.equal(values[..., :1], -keys[..., :1])


def test_clear_zeroes_one_slot_only() -> None:
    cache = make()
    write(cache, [0, 1], [0, 0], 4, 4, 1.0)
    cache.clear(0, 1, 3)
    for keys, values in write(cache, [0, 1], [4, 4], 1, 5, 20.0):
        assert keys[0, 0, :, 0].tolist() == [1, 0, 0, 4, 20]
        assert values[0, 0, :, 0].tolist() == [-1, 0, 0, -4, -20]
        assert keys[1, 0, :, 0].tolist() == [5, 6, 7, 8, 21]
