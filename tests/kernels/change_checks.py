"""What the kernels must do where logits are changed: masks, penalties and bias. As `checks.py`."""

import importlib

import torch

from draftproof.core import Draft, Key, Purpose
from draftproof.kernels import reference
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.verify import get_verifier
from tests.kernels.checks import DEVICE, logits_of


def check_masks(kernels):
    """Only allowed tokens are drawn, by every road."""
    vocab_size, allowed_ids = 300, [3, 40, 41, 256, 299]
    words = torch.zeros(1, 10, dtype=torch.int64)
    for token in allowed_ids:
        words[0, token // 32] |= 1 << (token % 32)
    allowed = torch.where(words >= 1 << 31, words - (1 << 32), words).int().expand(3, -1).contiguous().to(DEVICE)
    logits = logits_of(3, vocab_size)
    masked = torch.full_like(logits, -torch.inf)
    masked[:, allowed_ids] = logits[:, allowed_ids]
    for params in (SamplingParams(temperature=3.0), SamplingParams(top_k=2), SamplingParams(temperature=0)):
        rows = kernels.Rows.of_drafts([1, 2, 3], [[]] * 3, device=DEVICE)
        requests = kernels.Requests.of([params] * 3, range(3), device=DEVICE)
        token_ids, _ = kernels.draw(logits, rows, requests, allowed=allowed)
        assert token_ids.tolist() == reference.draw(masked, rows, requests, vocab_size).tolist()


def check_masked_tiles(kernels):
    """One split of several tiles, in each of which few tokens are allowed, or none."""
    vocab_size, allowed_ids = 1800, [3, 300, 301, 1030, 1799]
    words = torch.zeros(8, 57, dtype=torch.int32)
    for token in allowed_ids:
        words[:, token // 32] |= 1 << (token % 32)
    logits = logits_of(8, vocab_size, spread=1.0)
    masked = torch.full_like(logits, -torch.inf)
    masked[:, allowed_ids] = logits[:, allowed_ids]
    rows = kernels.Rows.of_drafts(list(range(8)), [[]] * 8, device=DEVICE)
    requests = kernels.Requests.of([SamplingParams(temperature=3.0)] * 8, range(8), device=DEVICE)
    kernel = kernels.KeyedKernel(logits, rows, vocab_size, splits=1)
    token_ids = kernel(logits, rows, requests, allowed=words.to(DEVICE)).token_ids[:, 0].tolist()
    assert token_ids == reference.draw(masked, rows, requests, vocab_size).tolist()
    assert len(set(token_ids)) > 2


def check_penalised_tiles(kernels):
    """The largest logits of seven of eight tiles are special tokens', which bias takes far down: fewer tokens are
    left above the maxima than there are maxima, or none."""
    vocab_size, tile, down, likely = 2048, 256, -90.0, [1900, 1990]
    favourites = [tile * index + 7 * index + offset for index in range(7) for offset in (1, 2)]
    for count, stands_out, filters in (
        (4, False, {"top_k": 8, "top_p": 0.7}), (2, False, {"top_k": 3, "top_p": 0.7}), (6, True, {"top_k": 8}),
        (6, True, {"top_k": 8, "min_p": 0.2}),
    ):  # fmt: skip
        logits = logits_of(count, vocab_size, spread=1.0)
        logits[:, 7 * tile :] = logits[:, 7 * tile :].clamp(max=1.5)
        logits[:, favourites] = logits_of(count, len(favourites), spread=0.25, seed=4) + 60.0
        if stands_out:
            logits[:, likely] = torch.tensor([59.5, 58.5], dtype=logits.dtype, device=DEVICE)
        changed = logits.clone()
        changed[:, favourites] = (changed[:, favourites].float() + down).to(changed.dtype)
        params = SamplingParams(logit_bias=dict.fromkeys(favourites, down), **filters)
        rows = kernels.Rows.of_drafts(list(range(count)), [[]] * count, device=DEVICE)
        requests = kernels.Requests.of([params] * count, range(count), device=DEVICE, changed=True)
        changes = kernels.Changes.of([params] * count, [[]] * count, [[]] * count, device=DEVICE)
        kernel = kernels.KeyedKernel(
            logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows), tile=tile, splits=2
        )
        verdict = kernel(logits, rows, requests, changes=changes)
        assert not verdict.faults.any()
        assert verdict.token_ids[:, 0].tolist() == reference.draw(changed, rows, requests, vocab_size).tolist()


def check_changed_lanes(kernels):
    """Tiles of four groups, with special tokens in many lanes of each and a mask that leaves them in part."""
    vocab_size, tile, down, count = 2100, 1024, -90.0, 4
    favourites = [5, 250, 251, 262, 509, 512, 700, 1023, 1024, 1290, 1291, 1777, 2047, 2048, 2099]
    logits = logits_of(count, vocab_size, spread=1.0)
    logits[:, favourites] = logits_of(count, len(favourites), spread=0.25, seed=4) + 9.0
    # Of two groups that top-k lists where it asks for no more tokens than there are tiles.
    logits[:, [6, 1288]] = torch.tensor([6.0, 5.75], dtype=logits.dtype, device=DEVICE)
    generator = torch.Generator().manual_seed(3)
    bits = torch.rand(count, 66, 32, generator=generator) < 0.7
    words = (bits.long() << torch.arange(32)).sum(dim=2)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    allowed = bits.reshape(count, -1)[:, :vocab_size].to(DEVICE)
    changed = logits.clone()
    changed[:, favourites] = (changed[:, favourites].float() + down).to(changed.dtype)
    changed = torch.where(allowed, changed, -torch.inf)
    # Forbidden tokens that no logit exceeds; some of them in a group that is listed.
    tempting = [4, 7, 260, 261, 263, *range(516, 520), *range(100, 200)]
    logits[:, tempting] = torch.where(allowed[:, tempting], logits[:, tempting], torch.inf)
    for filters in ({"top_p": 0.7}, {"top_k": 5}, {"top_k": 2}, {"temperature": 0}):
        params = SamplingParams(logit_bias=dict.fromkeys(favourites, down), **filters)
        rows = kernels.Rows.of_drafts(list(range(count)), [[]] * count, device=DEVICE)
        requests = kernels.Requests.of([params] * count, range(count), device=DEVICE, changed=True)
        changes = kernels.Changes.of([params] * count, [[]] * count, [[]] * count, device=DEVICE)
        kernel = kernels.KeyedKernel(
            logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows), tile=tile, splits=1
        )
        verdict = kernel(logits, rows, requests, allowed=words.to(DEVICE), changes=changes)
        assert not verdict.faults.any()
        assert verdict.token_ids[:, 0].tolist() == reference.draw(changed, rows, requests, vocab_size).tolist()


def check_law_of_changed_lanes(kernels):
    """A law whose row is read by one program, tile after tile, with special tokens in each that had nearly all mass."""
    vocab_size, down = 2100, -90.0
    favourites = [5, 250, 262, 512, 1023, 1024, 1291, 1777, 2047, 2048, 2099]
    logits = logits_of(1, vocab_size, spread=1.0)
    logits[:, favourites] = 9.0
    changed = logits.clone()
    changed[:, favourites] = 9.0 + down
    params = SamplingParams(logit_bias=dict.fromkeys(favourites, down))
    rows = kernels.Rows.of_drafts([3], [[]], device=DEVICE)
    requests = kernels.Requests.of([params], [1], device=DEVICE, changed=True)
    changes = kernels.Changes.of([params], [[]], [[]], device=DEVICE)
    home = importlib.import_module(f"{kernels.__name__}.probs")
    splits_of, home.splits_of = home.splits_of, lambda num_rows, num_tiles: 1
    try:
        kernel = kernels.TargetProbsKernel(
            logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows), tile=1024
        )
        out = torch.zeros(1, vocab_size, device=DEVICE)
        assert not kernel(logits, rows, requests, out, changes=changes).any()
    finally:
        home.splits_of = splits_of
    assert (out - changed.double().softmax(dim=1)).abs().max() < 1e-6


def check_top_p_beside_banned_tokens(kernels):
    """Banned tokens had nearly all of the mass, and top-p is close to what stands before the winner. The last of them
    are not among the first special tokens that are looked at."""
    vocab_size, num_rows, banned, biased = 1300, 2, [4, 300, 611], range(700, 1230)
    logits = logits_of(num_rows, vocab_size, spread=1.0)
    logits[:, banned] = torch.tensor([16.0, 15.0, 16.0], dtype=logits.dtype, device=DEVICE)
    changed = logits.clone()
    changed[:, banned] = -torch.inf
    rows = kernels.Rows.of_drafts([0, 1], [[]] * num_rows, device=DEVICE)
    plain = kernels.Requests.of([SamplingParams()] * num_rows, [0, 1], device=DEVICE)
    law = reference.probs(changed, rows, plain, vocab_size)
    winners = reference.draw(changed, rows, plain, vocab_size).tolist()
    params, repeated = [], []
    for row, winner in enumerate(winners):
        before = law[row][law[row] > law[row, winner]].sum().item()
        for step in (-300, -30, -3, 3, 30, 300):
            bias = dict.fromkeys(biased, 0.0) | dict.fromkeys(banned, -float("inf"))
            params.append(SamplingParams(top_p=before * (1 + step * 1e-5) + 1e-9, logit_bias=bias))
            repeated.append(row)
    logits, changed, count = logits[repeated].contiguous(), changed[repeated].contiguous(), len(repeated)
    rows = kernels.Rows.of_drafts(repeated, [[]] * count, device=DEVICE)
    requests = kernels.Requests.of(params, repeated, device=DEVICE, changed=True)
    changes = kernels.Changes.of(params, [[]] * count, [[]] * count, device=DEVICE)
    kernel = kernels.KeyedKernel(logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows), splits=2)
    found = kernel(logits, rows, requests, changes=changes).token_ids[:, 0].tolist()
    assert found == reference.draw(changed, rows, requests, vocab_size).tolist()
    assert len(set(zip(repeated, found, strict=True))) > num_rows


def check_nothing_left(kernels):
    """Rows whose only allowed tokens are taken out by bias have no token to draw, by every road."""
    logits, words = logits_of(2, 512), torch.zeros(2, 16, dtype=torch.int32)
    words[:, 0] = 0b1001000
    words[1, 9] = 1
    rows = kernels.Rows.of_drafts([1, 2], [[]] * 2, device=DEVICE)
    for filters in ({}, {"top_k": 2}, {"top_k": 2, "min_p": 0.1}, {"top_p": 0.5}, {"temperature": 0}):
        params = SamplingParams(logit_bias={3: -float("inf"), 6: -float("inf")}, **filters)
        requests = kernels.Requests.of([params] * 2, range(2), device=DEVICE, changed=True)
        changes = kernels.Changes.of([params] * 2, [[]] * 2, [[]] * 2, device=DEVICE)
        token_ids, faults = kernels.draw(logits, rows, requests, allowed=words.to(DEVICE), changes=changes)
        assert faults.tolist() == [2, 0]
        assert token_ids.tolist() == [-1, 288]


def check_masked_shares(kernels):
    """Tiles that a mask leaves whole, takes out or leaves in part, the first and the last of a split's among them."""
    vocab_size, tile = 2100, 256
    words = torch.zeros(6, 66, dtype=torch.int32)
    for row, kinds in enumerate(("anspanspa", "nansnnnnp", "aaaaaaaaa", "nnnnnnnns", "spnnnaana", "sssssssss")):
        for index, kind in enumerate(kinds):
            mine = words[row, 8 * index : 8 * index + 8]
            mine[:] = {"a": -1, "n": 0, "s": 0, "p": 0x3FF5A0C3}[kind]
            if kind == "s":
                mine[0] = 1 << (3 * row + index)
    bits = (words[:, :, None] >> torch.arange(32)) & 1
    allowed = bits.reshape(6, -1)[:, :vocab_size].bool().to(DEVICE)
    logits = logits_of(6, vocab_size, spread=2.0)
    logits[~allowed] = float("nan")
    masked = torch.where(allowed, logits, -torch.inf)
    rows = kernels.Rows.of_drafts(list(range(6)), [[]] * 6, device=DEVICE)
    for params in (
        SamplingParams(temperature=2.5), SamplingParams(top_k=9, temperature=2.0),
        SamplingParams(top_p=0.8, temperature=1.5),
    ):  # fmt: skip
        requests = kernels.Requests.of([params] * 6, range(6), device=DEVICE)
        expected = reference.draw(masked, rows, requests, vocab_size).tolist()
        for splits in (2, 9):
            kernel = kernels.KeyedKernel(logits, rows, vocab_size, tile=tile, splits=splits)
            verdict = kernel(logits, rows, requests, allowed=words.to(DEVICE))
            assert verdict.token_ids[:, 0].tolist() == expected


def check_masked_quads(kernels):
    """A token or two of every quad are allowed, and most of the others are no numbers."""
    words = torch.full((8, 19), 0x21842148, dtype=torch.int32)
    allowed = ((words[:, :, None] >> torch.arange(32)) & 1).reshape(8, -1)[:, :600].bool().to(DEVICE)
    logits = logits_of(8, 600, spread=1.0)
    masked = torch.where(allowed, logits, -torch.inf)
    logits[:, 50:][~allowed[:, 50:]] = float("nan")
    rows = kernels.Rows.of_drafts(list(range(8)), [[]] * 8, device=DEVICE)
    requests = kernels.Requests.of([SamplingParams(temperature=3.0)] * 8, range(8), device=DEVICE)
    token_ids, faults = kernels.draw(logits, rows, requests, allowed=words.to(DEVICE))
    assert not faults.any()
    assert token_ids.tolist() == reference.draw(masked, rows, requests, 600).tolist()


def check_penalties(kernels):
    """Positive and negative logits, prompt and output, drafts on the path and beside it, bias before penalties."""
    for filters in ({"temperature": 1.3}, {"temperature": 1.0, "top_p": 0.6}, {"temperature": 1.0, "top_k": 6}):
        params = SamplingParams(
            repetition_penalty=1.7,
            frequency_penalty=0.6,
            presence_penalty=0.9,
            logit_bias={3: 4.0, 9: 5.0, 77: -float("inf"), 11: -3.0},
            **filters,
        )
        vocab_size, prompt, output, parents = 90, [5, 9, 9, *range(20, 70)], [7, 9, 46], [-1, 0, 0, 1]
        chain, start = SamplerChain("vllm"), 8
        row_params, base = chain.resolve(params, None, vocab_size), History(prompt, output)
        logits = logits_of(5, vocab_size, spread=1.0) - 1.0
        for seed in range(2):
            noise = KeyedNoise(seed)
            [first] = chain.laws(logits[:1].cpu(), row_params, [base])
            root = first.draw(noise, Key(Purpose.TARGET, start))
            draft = [root, 9, root, 3]
            paths = [[], [root], [root, 9], [root, root], [root, 9, 3]]
            laws = chain.laws(logits.cpu(), row_params, [base.extended(path) for path in paths])
            expected = get_verifier("keyed").verify(Draft.of_token_ids(start, draft, parents), laws, noise)
            rows = kernels.Rows.of_drafts([start], [draft], [parents], device=DEVICE)
            requests = kernels.Requests.of([params], [seed], device=DEVICE, changed=True)
            changes = kernels.Changes.of([params], [prompt], [output], device=DEVICE)
            verdict = kernels.verify_keyed(logits, rows, requests, changes=changes)
            assert [token for token in verdict.token_ids[0].tolist() if token >= 0] == list(expected.token_ids)
            # Every row by itself: the walk reaches few of them.
            keys = [Key(Purpose.TARGET, start + len(path)) for path in paths]
            alone = kernels.KeyedKernel(logits, rows, vocab_size, num_exceptions=changes.num_exceptions(rows))
            alone(logits, rows, requests, changes=changes)
            drawn, _, states = (column.tolist() for column in alone._drawn[:3])
            for token, state, law, key in zip(drawn, states, laws, keys, strict=True):
                assert state != 0 or token == law.draw(noise, key)


def check_drafted_of_many(kernels):
    """A drafted token that is listed far before the draft's own entries, as the prompt has it and much else."""
    vocab_size, prompt, start = 700, list(range(500)), 4
    logits = logits_of(2, vocab_size, spread=0.1)
    logits[:, 7], logits[:, 600] = 9.0, 8.0
    params = SamplingParams(temperature=0, frequency_penalty=1.7)
    laws = SamplerChain("vllm").laws(
        logits.cpu(), SamplerChain("vllm").resolve(params, None, vocab_size),
        [History(prompt, []), History(prompt, [7])],
    )  # fmt: skip
    assert [int(law.draw(KeyedNoise(1), Key(Purpose.TARGET, start))) for law in laws] == [7, 600]
    rows = kernels.Rows.of_drafts([start], [[7]], device=DEVICE)
    requests = kernels.Requests.of([params], [1], device=DEVICE, changed=True)
    changes = kernels.Changes.of([params], [prompt], [[]], device=DEVICE)
    assert kernels.verify_keyed(logits, rows, requests, changes=changes).token_ids[0].tolist() == [7, 600]


def check_penalised_favourite(kernels):
    """A token that would win every row by far, were it not penalised, by every road."""
    chain, prompt, output = SamplerChain("vllm"), [3], [40] * 15
    logits = logits_of(4, 300, spread=0.5)
    logits[:, 40] = 20.0
    for filters in ([{}], [{"top_p": 0.9}], [{"top_k": 5}], [{"temperature": 0}], [{"top_k": 5}, {"temperature": 0}]):
        each = [
            SamplingParams(presence_penalty=2.0, frequency_penalty=2.0, **filters[row % len(filters)])
            for row in range(4)
        ]
        expected = []
        for row, params in enumerate(each):
            row_params = chain.resolve(params, None, 300)
            [law] = chain.laws(logits[row : row + 1].cpu(), row_params, [History(prompt, output)])
            expected.append(law.draw(KeyedNoise(row), Key(Purpose.TARGET, 5)))
        rows = kernels.Rows.of_drafts([5] * 4, [[]] * 4, device=DEVICE)
        requests = kernels.Requests.of(each, range(4), device=DEVICE, changed=True)
        changes = kernels.Changes.of(each, [prompt] * 4, [output] * 4, device=DEVICE)
        token_ids, _ = kernels.draw(logits, rows, requests, changes=changes)
        assert token_ids.tolist() == expected
        assert 40 not in expected


def check_listed_once(kernels):
    """Tokens that are seen, drafted twice and biased are one special token each, with a bit and a bias."""
    params = SamplingParams(presence_penalty=0.5, logit_bias={9: 1.0, 60: 2.0, 70: 3.0})
    rows = kernels.Rows.of_drafts([8], [[60, 5, 60, 41]], device=DEVICE)
    changes = kernels.Changes.of([params], [[5, 9, 33]], [[9, 9]], device=DEVICE)
    listed = kernels.exceptions.Exceptions.empty(rows, changes.num_exceptions(rows), 80, 256, torch.device(DEVICE))
    kernels.exceptions.list_exceptions(rows, changes, 80, listed, overlaps=False)
    there = listed.ids[0] >= 0
    expected = {5: (0.0, 3), 9: (1.0, 9), 33: (0.0, 1), 60: (2.0, 2), 41: (0.0, 2), 70: (3.0, 0)}
    found = zip(*(column[0][there].tolist() for column in (listed.ids, listed.biases, listed.counts)), strict=True)
    assert sorted(found) == sorted((token, *entry) for token, entry in expected.items())
    # Of these 80 tokens each lane has eight side by side, in the lowest byte of its word.
    words = [sum(1 << token % 8 for token in expected if token // 8 == lane) for lane in range(32)]
    assert listed.special[0].tolist() == words
