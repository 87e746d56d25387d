"""Tree drafters over tables: laws that are known, so that a tree can be compared with what it should be."""

from __future__ import annotations

import math
import random

import numpy as np

from draftproof.core import Dense
from draftproof.verify.tables import LawTable


def uneven_table(vocab_size, seed):
    """Weights that depend on the whole context, no two of them equal."""

    def weights(context):
        source = random.Random(f"{seed} {context}")
        return [math.exp(1.5 * source.gauss(0, 1)) for _ in range(vocab_size)]

    return LawTable(vocab_size, weights)


class TableSource:
    """Laws from a `verify.tables.Table`, in float32."""

    method = "draft_model"
    max_depth = None
    costs_passes = False
    log_discount = 0.0
    proposes_without_confidence = True

    def __init__(self, table):
        self.table = table
        self.num_rounds = 0
        self.num_laws = 0

    def law(self, context):
        self.num_laws += 1
        return Dense(np.array([float(prob) for prob in self.table.probs(context)], dtype=np.float32))

    def root_laws(self, requests):
        self.num_rounds += 1
        return [self.law(tuple(request.context_ids)) for request in requests]

    def laws_after(self, trees, num_new):
        self.num_rounds += 1
        return [
            [
                self.law((*tree.request.context_ids, *(int(tree.token_ids[i]) for i in tree.path_to(node))))
                for node in tree.trunk[-num:]
            ]
            for tree, num in zip(trees, num_new, strict=True)
        ]

    def grown(self, request, law, scores, bounds):
        return None

    def went_down(self, slot, depth): ...

    def end_of_round(self, requests): ...

    def observe(self, slot, context_ids, verdict): ...

    def release(self, slot): ...

    def confidence(self, slot, context_ids):
        return None


def brute_force(table, context, max_depth, score):
    """Every path up to `max_depth`: (log weight, path), the best first. score: path -> the shares of its children."""
    found = []

    def visit(path, weight):
        if len(path) == max_depth:
            return
        shares = score(path)
        for token, share in enumerate(shares):
            if share > 0:
                found.append((weight + math.log(share), (*path, token)))
                visit((*path, token), weight + math.log(share))

    visit((), 0.0)
    return sorted(found, key=lambda item: -item[0])
