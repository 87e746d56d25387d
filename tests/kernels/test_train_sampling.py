"""Training text's sampler on a GPU draws what the plain sampler's reference draws, with noise of row and column."""

import pytest
import torch

from draftproof.errors import ModelError
from draftproof.kernels import reference
from draftproof.train.sampling import _Kernel, choose_sampler

V, ROWS = 200, 6


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_draws_as_the_reference(device, top_p):
    draw = _Kernel(torch.device(device), ROWS, top_p, 7)
    generator = torch.Generator().manual_seed(2)
    temperatures = [0.1, 0.5, 1.0, 1.0, 2.0, 0.7]
    for column in (0, 9):
        logits = (3.0 * torch.randn(ROWS, V, generator=generator)).to(device)
        found = draw(logits, temperatures, column)
        assert draw._rows.position.tolist() == [column] * ROWS
        assert draw._requests.temperature.tolist() == pytest.approx(temperatures)
        assert found == reference.draw(logits, draw._rows, draw._requests, V).tolist()
    assert found != draw(logits, temperatures, 10)


def test_logits_without_a_law_are_an_error(device):
    draw = _Kernel(torch.device(device), ROWS, 1.0, 7)
    logits = torch.zeros(ROWS, V, device=device)
    logits[3, 5] = float("nan")
    with pytest.raises(ModelError, match="NaN"):
        draw(logits, [1.0] * ROWS, 0)


def test_a_cpu_has_no_kernel():
    assert not isinstance(choose_sampler(torch.device("cpu"), ROWS, 1.0, 0), _Kernel)
