"""Training text's sampler on a GPU draws what the plain sampler's reference draws, with noise of row and column."""

import numpy as np
import pytest
import torch

from draftproof.kernels import reference
from draftproof.train.sampling import KernelSampler, RaceSampler, choose_sampler

V, ROWS = 200, 6


TEMPERATURES = np.array([0.1, 0.5, 1.0, 1.0, 2.0, 0.7], dtype=np.float32)


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_draws_as_the_reference(device, top_p):
    draw = KernelSampler(torch.device(device), ROWS, top_p)
    draw.begin(7)
    generator = torch.Generator().manual_seed(2)
    for column in (0, 9):
        logits = (3.0 * torch.randn(ROWS, V, generator=generator)).to(device)
        draw.expect(TEMPERATURES, column)
        found = draw(logits).tolist()
        assert draw._rows.position.tolist() == [column] * ROWS
        assert draw._requests.temperature.tolist() == pytest.approx(TEMPERATURES.tolist())
        assert found == reference.draw(logits, draw._rows, draw._requests, V).tolist()
    draw.expect(TEMPERATURES, 10)
    assert found != draw(logits).tolist()
    draw.begin(8)
    draw.expect(TEMPERATURES, 9)
    assert found != draw(logits).tolist()


@pytest.mark.parametrize("sampler", [KernelSampler, RaceSampler])
def test_logits_without_a_law_have_no_token(device, sampler):
    draw = sampler(torch.device(device), ROWS, 1.0)
    draw.begin(7)
    draw.expect(TEMPERATURES, 0)
    logits = torch.zeros(ROWS, V, device=device)
    logits[3, 5] = float("nan")
    found = draw(logits).tolist()
    assert found[3] < 0 and min(found[:3] + found[4:]) >= 0


def test_a_cpu_has_no_kernel():
    assert not isinstance(choose_sampler(torch.device("cpu"), ROWS, 1.0), KernelSampler)
