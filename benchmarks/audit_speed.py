"""Speed of scoring and statistics for a target of a million parameters; prints one JSON line.

    python -m benchmarks.audit_speed [--num-tokens 20000] [--threads 2]

The target is a Llama of random weights, 4 layers, width 128, 1,024 tokens (1.0 M parameters), float32 on the CPU;
texts are 256 random tokens after a prompt of 8, so generation costs nothing and is not counted. Scoring is the
forward pass, the sampler chain and the reduction to scores; statistics are all hypotheses and the e-process. One
batch goes first, whose time is `first_seconds`: libraries are loaded by their first use.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftproof import SamplingParams
from draftproof.audit.battery import Layout, hypotheses
from draftproof.audit.engine import Generation, Request
from draftproof.audit.models import TorchModel
from draftproof.audit.scorer import Scorer
from draftproof.audit.scores import TokenScores
from draftproof.audit.statistics.eprocess import EProcess

VOCAB_SIZE = 1024
LENGTH = 256
BATCH = 16
SETTINGS = {
    "temperature 0.8": SamplingParams(temperature=0.8, max_tokens=LENGTH),
    "temperature 0.8, top_p 0.95": SamplingParams(temperature=0.8, top_p=0.95, max_tokens=LENGTH),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-tokens", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).float().eval()
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    began = time.perf_counter()
    measure(model, next(iter(SETTINGS.values())), BATCH * LENGTH)
    first_seconds = time.perf_counter() - began
    figures = {name: measure(model, params, given.num_tokens) for name, params in SETTINGS.items()}
    document = {
        "num_parameters": num_parameters,
        "vocab_size": VOCAB_SIZE,
        "threads": given.threads,
        "first_seconds": first_seconds,
        "settings": figures,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(document))


def measure(model: Any, params: SamplingParams, num_tokens: int) -> dict[str, float]:
    """Tokens a second of both together, and the share of the statistics."""
    random = np.random.default_rng(1)
    scorer, layout = Scorer(TorchModel(model, max_batch=BATCH)), Layout()
    evidence, parts = EProcess(knows_draft=False), []
    scoring = statistics = 0.0
    began_cpu = time.process_time()
    for start in range(0, num_tokens, BATCH * LENGTH):
        requests = [
            Request(tuple(map(int, random.integers(0, VOCAB_SIZE, 8))), params, start + i) for i in range(BATCH)
        ]
        outputs = [Generation(tuple(map(int, random.integers(0, VOCAB_SIZE, LENGTH)))) for _ in range(BATCH)]
        began = time.perf_counter()
        scored = scorer.score(requests, outputs, first_request=start).scores
        scoring += time.perf_counter() - began
        began = time.perf_counter()
        evidence.update(scored)
        parts.append(scored)
        statistics += time.perf_counter() - began
    began = time.perf_counter()
    joined = TokenScores.joined(parts)
    hypotheses(joined, layout)
    statistics += time.perf_counter() - began
    return {
        "tokens": len(joined),
        "tokens_per_second": len(joined) / (scoring + statistics),
        "tokens_per_cpu_second": len(joined) / (time.process_time() - began_cpu),
        "share_of_statistics": statistics / (scoring + statistics),
    }


if __name__ == "__main__":
    main()
