"""Philox against published vectors, and the same integers for ints, numpy, torch and any batch shape."""

import numpy as np
import pytest
import torch

from draftproof.noise import philox4x32

# Random123 1.14, tests/kat_vectors: (rounds, counter, key, output).
PI = ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0))
ZEROS, ONES = ((0,) * 4, (0,) * 2), ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2)
VECTORS = [
    (7, *ZEROS, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    (7, *ONES, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (7, *PI, (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A)),
    (10, *ZEROS, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (10, *ONES, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (10, *PI, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "output"), VECTORS)
def test_known_answers(rounds, counter, key, output):
    assert philox4x32(counter, key, rounds) == output


@pytest.mark.parametrize(("rounds", "counter", "key", "output"), VECTORS)
@pytest.mark.parametrize("make", [lambda w: np.array([w, w]), lambda w: torch.tensor([w, w])], ids=["numpy", "torch"])
def test_known_answers_in_arrays(rounds, counter, key, output, make):
    words = philox4x32(tuple(make(word) for word in counter), key, rounds)
    assert [word.tolist() for word in words] == [[word, word] for word in output]


def test_same_integers_for_ints_numpy_and_torch():
    generator = np.random.default_rng(5)
    counters, keys = generator.integers(0, 2**32, (4, 257)), generator.integers(0, 2**32, (2, 257))
    in_numpy = philox4x32(tuple(counters), tuple(keys))
    in_torch = philox4x32(tuple(map(torch.from_numpy, counters)), tuple(map(torch.from_numpy, keys)))
    for column in range(257):
        in_ints = philox4x32(tuple(map(int, counters[:, column])), tuple(map(int, keys[:, column])))
        assert in_ints == tuple(int(word[column]) for word in in_numpy)
    assert all((a == b.numpy()).all() for a, b in zip(in_numpy, in_torch, strict=True))
