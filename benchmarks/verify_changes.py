"""What `benchmarks.verify` times beside plain rows: penalties, bias and masks of allowed tokens, and their reference.

Every request has seen SEEN tokens, half in its prompt and half in its output: the 20 likeliest of its first row, the
others at random; it has all three penalties, and a bias of -4 to 4 on some tokens at random. The kinds differ in how
many are biased and in what a mask forbids:
none: nothing of all this. few: 10 biased, no mask. many: 600 biased, no mask.
run: 10 biased; every other of 3,200 tokens side by side, so that nearly all tiles of 1,024 are allowed whole.
tenth: 600 biased; a tenth of the vocabulary, one by one at random, as in a grammar's strings.
nearly-all: 600 biased; 99 of 100 tokens, one by one at random, as between a grammar's strings.
Masks differ from row to row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from draftproof.kernels import Changes, KeyedKernel, Requests, Rows, reference
from draftproof.params import SamplingParams

SEEN = 600
RUN = 3200


class Kind(NamedTuple):
    """How many tokens a request biases, and which are forbidden: a share of all at random, or a run's every other."""

    biased: int
    forbidden: float = 0.0
    run: bool = False


KINDS = {
    "none": None,
    "few": Kind(10),
    "many": Kind(600),
    "run": Kind(10, run=True),
    "tenth": Kind(600, 0.1),
    "nearly-all": Kind(600, 0.99),
}


class Changed(NamedTuple):
    """A batch's requests and what changes their logits. allowed: the mask's words, or None."""

    requests: Requests
    changes: Changes
    allowed: torch.Tensor | None
    forbidden: torch.Tensor | None


def changed(logits: torch.Tensor, params: SamplingParams, num_requests: int, kind: Kind) -> Changed:
    """Changes of `kind` for requests of equally many rows of `logits` [rows, V]."""
    num_rows, vocab_size = logits.shape
    source = np.random.Generator(np.random.Philox(11))
    likely = logits[:: num_rows // num_requests].topk(20, dim=1).indices.tolist()
    all_params, prompts, outputs = [], [], []
    for own in likely:
        seen = [*own, *source.integers(0, vocab_size, SEEN - len(own)).tolist()]
        prompts.append(seen[::2])
        outputs.append(seen[1::2])
        biased = source.choice(vocab_size, kind.biased, replace=False).tolist()
        bias = dict(zip(biased, source.uniform(-4, 4, kind.biased).tolist(), strict=True))
        all_params.append(
            replace(params, repetition_penalty=1.1, frequency_penalty=0.2, presence_penalty=0.3, logit_bias=bias)
        )
    forbidden = None
    if kind.run:
        forbidden = torch.zeros(num_rows, vocab_size, dtype=torch.bool, device=logits.device)
        first = vocab_size // 3
        forbidden[:, first : first + RUN : 2] = True
    elif kind.forbidden > 0:
        generator = torch.Generator(logits.device).manual_seed(12)
        at_random = torch.empty(vocab_size, device=logits.device)
        forbidden = torch.stack([at_random.uniform_(generator=generator) < kind.forbidden for _ in range(num_rows)])
    return Changed(
        Requests.of(all_params, range(num_requests), device=logits.device, changed=True),
        Changes.of(all_params, prompts, outputs, device=logits.device),
        None if forbidden is None else words_of(~forbidden),
        forbidden,
    )


def words_of(allowed: torch.Tensor) -> torch.Tensor:
    """[rows, ceil(V / 32)] int32 of [rows, V] bool: a bit for each token."""
    num_words = -(-allowed.shape[1] // 32)
    bits = torch.zeros(len(allowed), 32 * num_words, dtype=torch.bool, device=allowed.device)
    bits[:, : allowed.shape[1]] = allowed
    place = torch.arange(32, device=allowed.device)
    rows = [(row.view(num_words, 32).long() << place).sum(1) for row in bits]
    words = torch.stack(rows)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def drafts_accepted(
    kernel: KeyedKernel, logits: torch.Tensor, given: Changed, num_requests: int, length: int, accepted: int, start: int
) -> list[list[int]]:
    """Drafts of `length` tokens whose first `accepted` are the rows' own and whose next isn't.

    What a row draws depends on the drafted tokens before it, so they are found one after the other.
    """
    vocab_size = logits.shape[1]
    drafts = [[0] * length for _ in range(num_requests)]
    for _ in range(accepted + 2):
        rows = Rows.of_drafts([start] * num_requests, drafts, device=logits.device)
        verdict = kernel(logits, rows, given.requests, allowed=given.allowed, changes=given.changes)
        counts, emitted = verdict.num_accepted.tolist(), verdict.token_ids.tolist()
        for draft, count, tokens in zip(drafts, counts, emitted, strict=True):
            known = [token for token in tokens if token >= 0][: count + 1]
            draft[: len(known)] = known[:length]
            if len(known) > accepted and accepted < length:
                draft[accepted] = (known[accepted] + 1) % vocab_size
    return drafts


def processed(logits: torch.Tensor, rows: Rows, given: Changed) -> torch.Tensor:
    """[rows, V] float32: logits after bias, penalties and mask, in the default chain's order, by PyTorch alone."""
    found, changes = logits.float(), given.changes
    drafted = rows.drafted_of.long()
    for index, request in enumerate(rows.request.tolist()):
        z = found[index]
        there = changes.bias_ids[request] >= 0
        z[changes.bias_ids[request][there].long()] += changes.biases[request][there]
        there = changes.seen_ids[request] >= 0
        seen = torch.zeros(z.shape, dtype=torch.bool, device=z.device)
        counts = torch.zeros(z.shape, device=z.device)
        ids = changes.seen_ids[request][there].long()
        seen[ids] = True
        counts[ids] = changes.seen_counts[request][there].float()
        nodes = drafted[request][rows.ancestors[index]]
        counts.index_add_(0, nodes, torch.ones(len(nodes), device=z.device))
        repetition = changes.repetition[request]
        z = torch.where(seen | (counts > 0), torch.where(z > 0, z / repetition, z * repetition), z)
        z = z - counts * changes.frequency[request]
        found[index] = z - torch.where(counts > 0, changes.presence[request], 0.0)
    return found if given.forbidden is None else found.masked_fill(given.forbidden, -torch.inf)


def num_wrong(logits: torch.Tensor, params: SamplingParams, kind: Kind, start: int) -> int:
    """How many of the emitted tokens of requests of four rows each of `logits` aren't the float64 reference's, where
    its two best aren't within 1e-6, or are missing."""
    num_rows, vocab_size = logits.shape
    count, length = num_rows // 4, 3
    given = changed(logits, params, count, kind)
    drafts = [[0] * length] * count
    rows = Rows.of_drafts([start] * count, drafts, device=logits.device)
    kernel = KeyedKernel(logits, rows, vocab_size, num_exceptions=given.changes.num_exceptions(rows))
    drafts = drafts_accepted(kernel, logits, given, count, length, 2, start)
    rows = Rows.of_drafts([start] * count, drafts, device=logits.device)
    law = reference.probs(processed(logits, rows, given), rows, given.requests, vocab_size)
    ratios = reference.exponential(reference.field(rows, given.requests, vocab_size)) / law
    best = ratios.topk(2, dim=-1, largest=False)
    clear = (best.values[:, 1] > best.values[:, 0] * (1 + 1e-6)).view(count, 4)[:, :3]
    verdict = kernel(logits, rows, given.requests, allowed=given.allowed, changes=given.changes)
    own = best.indices[:, 0].view(count, 4)[:, :3]
    return int((clear & (verdict.token_ids[:, :3] != own)).sum())
