"""The engine on a CUDA device verifies through the kernels: what the tests for each verifier share."""

import dataclasses
import random

import torch

from draftproof import LLM, SamplingParams
from draftproof.engine.device_verification import DeviceVerification
from draftproof.targets.hf import HFTarget
from tests.targets.models import VOCAB_SIZE, tiny_model

CHANGES = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {1: 2.0}}
MASKS = {"allowed_token_ids": list(range(0, VOCAB_SIZE, 2)), "min_tokens": 5, "stop_token_ids": [2]}
# Kernels are compiled for what they take, which is most of these tests' time: for nothing besides, or for all of it.
KINDS = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_k": 4, "top_p": 0.9},
    {"top_p": 0.7, **CHANGES, **MASKS},
    {"min_p": 0.05, **CHANGES, **MASKS},
    {"typical_p": 0.9},
]
SOURCE = random.Random(5)
PROMPTS = [[SOURCE.randrange(VOCAB_SIZE) for _ in range(6)] * 2 for _ in KINDS]
PARAMS = [SamplingParams(seed=seed, max_tokens=24, detokenize=False, **kind) for seed, kind in enumerate(KINDS)]


def target_of():
    return HFTarget(tiny_model("llama", torch.bfloat16).cuda(), num_slots=len(KINDS), invariant=True)


def texts(target, verifier, by_kernels):
    config = {"method": "ngram", "num_speculative_tokens": 4, "draft_length": "fixed", "prompt_lookup_min": 1}
    speculative = None if verifier is None else {**config, "verifier": verifier}
    llm = LLM.from_target(target, None, speculative_config=speculative)
    machinery = llm.engine.machinery
    assert isinstance(machinery.verification, DeviceVerification)
    if not by_kernels:
        llm.engine.machinery = dataclasses.replace(machinery, verification=None)
    outputs = llm.generate(PROMPTS, PARAMS)
    if verifier is not None:
        assert sum(output.metrics.speculative_decoding["num_draft_tokens"] for output in outputs) > 0
    return [output.outputs[0].token_ids for output in outputs]


def check_verifier(verifier):
    """The reference way's tokens; under `keyed`, those of plain decoding too."""
    target = target_of()
    found = texts(target, verifier, by_kernels=True)
    assert found == texts(target, verifier, by_kernels=False)
    if verifier == "keyed":
        assert found == texts(target, None, by_kernels=True)
