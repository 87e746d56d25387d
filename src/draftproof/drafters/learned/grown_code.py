"""Best-first growth of a tree over short lists, as numba compiles it: what `short_lists.py` and a builder do together.

Imported where numba is there, and compiled once for all processes: its cache lies beside this file or in the user's
cache folder.
"""

from __future__ import annotations

import math

import numpy as np

from draftproof.drafters.tree.ranked_code import REASSOCIATED, best_of, compiled, to_log_shares

NEAR = 4.0
"""Nats below a slot's likeliest token: where noise isn't looked at and enough tokens are as near, others aren't."""


@compiled()
def field_word(token_id, position, sample_index, key0, key1):  # type: ignore[no-untyped-def]
    """The word of the target's field, as noise.py lays it out: Philox4x32-7 of (token // 4, position, sample, 0)."""
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1 = np.uint64(token_id // 4), np.uint64(position)
    c2, c3 = np.uint64(sample_index), np.uint64(0)
    k0, k1 = np.uint64(key0), np.uint64(key1)
    for _ in range(7):
        first, second = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = (second >> half) ^ c1 ^ k0, (first >> half) ^ c3 ^ k1
        c1, c3 = second & mask, first & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    lane = token_id % 4
    return c0 if lane == 0 else c1 if lane == 1 else c2 if lane == 2 else c3


@compiled()
def exponential_of(token_id, position, sample_index, key0, key1):  # type: ignore[no-untyped-def]
    """A token's exponential, finite and above 0 as in scores.py."""
    word = float(field_word(token_id, position, sample_index, key0, key1))
    return -math.log1p(-min((word + 0.5) * 2.0**-32, 1.0 - 2.0**-24))


@compiled(fastmath=REASSOCIATED)
def gathered(logits, edge, places):  # type: ignore[no-untyped-def]
    """The places of logits above `edge`, into `places` [D]; returns how many there are."""
    count = 0
    for place in range(len(logits)):
        places[count] = place
        count += logits[place] > edge
    return count


@compiled(fastmath=REASSOCIATED)
def make_list(logits, ids, rows, scale, reach, noise, places, kept, scores, powers, own_rows):  # type: ignore[no-untyped-def]
    """A slot's list into kept, scores, powers [L] and own_rows [L, rank]; returns how many there are. noise: (weight,
    position, sample index, key words). places [D + 1]: scratch."""
    noise_weight, position, sample_index, key0, key1 = noise
    length = len(kept)
    most = logits[0]
    for place in range(1, len(logits)):
        most = max(most, logits[place])
    count = gathered(logits, most - NEAR / scale, places) if noise_weight == 0.0 else 0
    if count < length:
        count = gathered(logits, most - reach / scale, places)
    weights = np.empty(count, dtype=np.float64)
    factors = np.ones(count, dtype=np.float64)
    total = 0.0
    for index in range(count):
        weights[index] = math.exp((logits[places[index]] - most) * scale)
        total += weights[index]
    if noise_weight > 0.0:
        # Some `length` tokens have a weight over E of total / length or more, since E is below x with probability x or
        # less; and E is no less than the uniform number that it is made of.
        edge = 0.25 * total / length if count > length else 0.0
        for index in range(count):
            word = float(field_word(ids[places[index]], position, sample_index, key0, key1))
            uniform = min((word + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
            if weights[index] < edge * uniform:
                weights[index] = 0.0
                continue
            exponential = -math.log1p(-uniform)
            factors[index] = 1.0 / exponential if noise_weight == 1.0 else exponential**-noise_weight
            weights[index] *= factors[index]
    least = 0.0
    if count > length:
        least = np.partition(weights, count - length)[count - length]
    num_kept = 0
    for index in range(count):
        if weights[index] >= least and weights[index] > 0.0 and num_kept < length:
            place = places[index]
            kept[num_kept] = ids[place]
            scores[num_kept] = (logits[place] - most) * scale
            powers[num_kept] = factors[index]
            own_rows[num_kept] = rows[place]
            num_kept += 1
    return num_kept


@compiled(fastmath=REASSOCIATED)
def grow(  # type: ignore[no-untyped-def]
    logits,
    ids,
    rows,
    table,
    scale,
    reach,
    length,
    sharpness,
    noise,
    num_children,
    budget,
    max_depth,
    least,
    discounts,
    root_ids,
    root_probs,
    places,
    own_rows,
):
    """Pops the heaviest candidate until `budget` were popped, or none of enough log weight is left; each one popped is
    expanded.

    logits [slots, D] of tokens ids [D]; rows [D, rank] and table [V, rank]: the bias. noise: of the first slot, as
    `make_list` takes it. least [budget]: log weights that the first, second, … one popped need. discounts:
    added to the log shares of each depth, the last one's below it too. root_ids, root_probs [K]: the law of the first
    slot. places [D + 1] and own_rows [slots or more, length, rank]: scratch, whose pages are there. Returns those that
    were popped, in that order: token ids, parents and depths [3, n], log weights [n]. A parent stands before its
    children, and is named by its place, -1 for the context.
    """
    noise_weight, position, sample_index, key0, key1 = noise
    num_slots, rank = len(logits), rows.shape[1]
    capacity = (1 + budget) * num_children
    tokens, parents = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.int64)
    depths, heights = np.empty(capacity, dtype=np.int64), np.empty(capacity, dtype=np.float64)
    counts = np.full(num_slots, -1, dtype=np.int64)
    lists = np.empty((num_slots, length), dtype=np.int64)
    scores, powers = np.empty((num_slots, length), dtype=np.float32), np.empty((num_slots, length), dtype=np.float64)
    values = np.empty(max(length, len(root_ids)), dtype=np.float64)
    best, order = np.empty(num_children, dtype=np.float64), np.empty(num_children, dtype=np.int64)
    popped, log_weights = np.empty((3, budget), dtype=np.int64), np.empty(budget, dtype=np.float64)

    total = 0.0
    for index in range(len(root_ids)):
        value = float(root_probs[index])
        if noise_weight > 0.0 and value > 0.0:
            exponential = exponential_of(root_ids[index], position, sample_index, key0, key1)
            value = value / exponential if noise_weight == 1.0 else value * exponential**-noise_weight
        values[index] = value
        total += value
    num = best_of(values, len(root_ids), best, order)
    to_log_shares(best, num, total, sharpness)
    for index in range(num):
        tokens[index], parents[index], depths[index], heights[index] = (
            root_ids[order[index]],
            -1,
            0,
            best[index] + discounts[0],
        )

    num_popped = 0
    while num_popped < budget:
        top = -1
        for index in range(num):
            if heights[index] >= least[num_popped] and (top < 0 or heights[index] > heights[top]):
                top = index
        if top < 0:
            break
        height = heights[top]
        heights[top] = -np.inf
        node = num_popped
        popped[0, node], popped[1, node], popped[2, node] = tokens[top], parents[top], depths[top]
        log_weights[node] = height
        num_popped += 1
        slot = depths[top] + 1
        if num_popped == budget or slot >= num_slots or slot >= max_depth:
            continue
        if counts[slot] < 0:
            own_noise = (noise_weight, position + slot, sample_index, key0, key1)
            own = lists[slot], scores[slot], powers[slot], own_rows[slot]
            counts[slot] = make_list(logits[slot], ids, rows, scale, reach, own_noise, places, *own)
        count = counts[slot]
        embedded = table[tokens[top]]
        most = -np.inf
        for index in range(count):
            bias = np.float32(0.0)
            for part in range(rank):
                bias += embedded[part] * own_rows[slot, index, part]
            values[index] = scores[slot, index] + bias * scale
            most = max(most, values[index])
        total = 0.0
        for index in range(count):
            values[index] = math.exp(values[index] - most) * powers[slot, index]
            total += values[index]
        num_best = best_of(values, count, best, order)
        to_log_shares(best, num_best, total, sharpness)
        for index in range(num_best):
            tokens[num], parents[num], depths[num] = lists[slot, order[index]], node, slot
            heights[num] = height + discounts[min(slot, len(discounts) - 1)] + best[index]
            num += 1
    return popped[:, :num_popped], log_weights[:num_popped]
