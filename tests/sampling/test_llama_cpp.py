"""The preset `llama.cpp` against llama.cpp's own samplers, whose results tools/gen_llama_cpp_laws.py wrote down."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from draftproof.core import Key, Law, Noise
from draftproof.params import SamplingParams
from draftproof.sampling import History, RowParams, SamplerChain, resolve
from tools.gen_llama_cpp_laws import SIZE, rows

RECORDED = json.loads((Path(__file__).parent / "llama_cpp.json").read_text(encoding="utf-8"))
# llama.cpp computes in float32 and sums 96 probabilities one by one.
TOLERANCE = 2e-5


class Falls(Noise):
    """A coin that always falls; llama.cpp's cases have xtc_probability 1."""

    def coin(self, key: Key, numerator: object, denominator: object = 1) -> bool:
        return True


def same(law: Law, recorded: dict[str, float], size: int = SIZE) -> None:
    probs = np.asarray(law.at(None, size), dtype=float)
    assert np.flatnonzero(probs).tolist() == [int(token_id) for token_id in recorded]
    np.testing.assert_allclose(probs[probs > 0], list(recorded.values()), rtol=TOLERANCE)


def row_of(fields: dict) -> RowParams:
    return resolve(SamplingParams(**fields), None, SIZE)


@pytest.mark.parametrize("case", RECORDED["laws"], ids=lambda case: f"{case['fields']} row {case['row']}")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_laws(case: dict, dtype: str) -> None:
    logits = torch.from_numpy(rows(case["seed"], 2)[[case["row"]]])
    history = RECORDED["history"]
    for split in (0, 5, len(history)):  # what is prompt and what is output makes no difference there
        [law] = SamplerChain("llama.cpp", dtype).laws(
            logits, row_of(case["fields"]), [History(history[:split], history[split:])], noise=Falls()
        )
        same(law, case["law"])


@pytest.mark.parametrize("run", RECORDED["mirostat"], ids=lambda run: str(run["fields"]))
@pytest.mark.parametrize("preset", ["llama.cpp", "vllm"])
def test_mirostat_follows_llama_cpp_over_twelve_tokens(run: dict, preset: str) -> None:
    chain, row = SamplerChain(preset), row_of(run["fields"])
    history = row.first_history([0])
    for logits, step in zip(rows(run["seed"], len(run["steps"])), run["steps"], strict=True):
        [law] = chain.laws(torch.from_numpy(logits[None]), row, [history])
        same(law, step["law"])
        history = history.extended((step["token_id"],), (law,))


@pytest.mark.parametrize("case", RECORDED["breakers"], ids=lambda case: case["text"])
def test_dry_and_its_breakers(case: dict, embedded_tokenizer: object) -> None:
    size, candidates = 49152, sorted(set(case["token_ids"]))
    logits = torch.full((1, size), -torch.inf)
    logits[0, candidates] = 0.0
    chain = SamplerChain("llama.cpp")
    row = chain.resolve(SamplingParams(**case["fields"]), embedded_tokenizer, size)
    [law] = chain.laws(logits, row, [History(case["token_ids"])])
    same(law, case["law"], size)
