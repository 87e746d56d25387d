"""Penalties, biases and masks at a whole vocabulary: what the library's own chain and verifiers emit, on the host."""

from collections.abc import Sequence

import numpy as np
import torch

from draftproof.core import Draft
from draftproof.engine.device_inputs import words_of
from draftproof.kernels import Changes, DraftLaws, RatioKernel, Requests, Rows, verify_keyed
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import SamplerChain, laws_along
from draftproof.verify import get_verifier
from tests.gpu.cases import VOCAB_SIZE, emitted, logits_of

PENALTIES = {"repetition_penalty": 1.7, "frequency_penalty": 0.6, "presence_penalty": 0.9}
FILTERS = [
    {"temperature": 0.8},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.3, "top_k": 30},
    {"temperature": 0},
]
LENGTH = 4
START = 600


def check_changes(rule: str, filters: Sequence[dict[str, float]] = FILTERS) -> None:
    """Two requests of each of `filters`, one of them masked; prompts and outputs of hundreds of tokens."""
    count, chain = 2 * len(filters), SamplerChain("vllm")
    logits = logits_of(count * (LENGTH + 1), VOCAB_SIZE, torch.bfloat16)
    source = np.random.Generator(np.random.Philox(7))
    params, contexts, masks, drafts, expected = [], [], [], [], []
    on_host = logits.cpu()
    for index in range(count):
        rows = on_host[index * (LENGTH + 1) : (index + 1) * (LENGTH + 1)]
        likely = rows.float().topk(40, dim=1).indices.flatten().tolist()
        bias = {int(token): float(value) for token, value in zip(likely[::9], source.uniform(-4, 4, 40), strict=False)}
        one = SamplingParams(logit_bias=bias, **PENALTIES, **filters[index % len(filters)])
        prompt = [*likely[::3], *source.integers(0, VOCAB_SIZE, 300).tolist()]
        output = [*likely[::5], *likely[::7], *source.integers(0, VOCAB_SIZE, 200).tolist()]
        mask = source.random(VOCAB_SIZE) < 0.7 if index >= len(filters) else None
        draft = Draft.of_token_ids(START, [likely[40 * node + node % 2] for node in range(LENGTH)])
        row_params = chain.resolve(one, None, VOCAB_SIZE)
        history = row_params.first_history(prompt).extended(output)
        noise = KeyedNoise(index)
        laws = laws_along(
            chain, rows, row_params, history, draft.token_ids, draft.parents, masks=[mask] * (LENGTH + 1), noise=noise
        )
        expected.append([*get_verifier(rule).verify(draft, laws, noise).token_ids])
        params.append(one)
        contexts.append((prompt, output))
        masks += [mask] * (LENGTH + 1)
        drafts.append([*draft.token_ids])
    rows_on_device = Rows.of_drafts([START] * count, drafts, device="cuda")
    requests = Requests.of(params, range(count), device="cuda", changed=True)
    prompts, outputs = zip(*contexts, strict=True)
    changes = Changes.of(params, prompts, outputs, device="cuda")
    allowed = words_of(masks, VOCAB_SIZE, torch.device("cuda"))
    if rule == "keyed":
        verdict = verify_keyed(logits, rows_on_device, requests, allowed=allowed, changes=changes)
    else:
        law = DraftLaws.point_masses()
        num_exceptions = changes.num_exceptions(rows_on_device)
        kernel = RatioKernel(
            logits, law, rows_on_device, VOCAB_SIZE, block=rule == "block", num_exceptions=num_exceptions
        )
        verdict = kernel(logits, law, rows_on_device, requests, allowed=allowed, changes=changes)
    assert not verdict.faults.any()
    assert emitted(verdict.token_ids) == expected
