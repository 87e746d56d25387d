"""Random passes over one text, each row of logits held against plain decoding's, bit for bit.

    python -m benchmarks.trees.fuzz --threads 1 --seconds 600 --in-place both

Plain decoding writes the texts, token by token, and its rows are kept. Then passes of random kinds go over the same
positions: single tokens, chains and trees with the text's own tokens among wrong ones, taken back to where they may
stand, prompts cut in other chunks, prefixes copied from another slot. A tree's node on the text has plain's context,
so its row must be plain's, in every bit. Contexts begin on both sides of every step of keys, and of the places at which
a kernel's sum changes. What `auto` chooses depends on the clock; this doesn't, and meets far more shapes.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.first.common import machine
from benchmarks.trees.common import WIDEST
from draftproof.bench.prompts import built_in
from draftproof.targets.base import ScoreRequest
from draftproof.targets.load import load_target

LENGTHS = (3, 20, 47, 60, 92, 110, 124, 150, 172, 190, 205, 236, 252, 300, 370, 400, 500, 515, 640, 760, 900, 1015)
NUM_ROWS = 32
MOST_DRAFTS = 8
MOST_NODES = 64


@dataclass(frozen=True)
class Text:
    """token_ids: all of it. start: of the tokens that plain decoding wrote. rows: from token start - 1 on, each what
    plain decoding saw after that token."""

    token_ids: list[int]
    start: int
    rows: torch.Tensor


@dataclass(frozen=True)
class Tree:
    """token_ids, parents of the nodes; path: the nodes that are on the text, from the first on."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]


class Random:
    """Choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def below(self, stop: int) -> int:
        return int(torch.randint(stop, (1,), generator=self.generator))

    def between(self, least: int, most: int) -> int:
        return least + self.below(most - least + 1)

    def one_of(self, values: Sequence[Any]) -> Any:
        return values[self.below(len(values))]


def written(target: Any, prompt_ids: Sequence[int], num_rows: int, generator: torch.Generator) -> Text:
    """Plain decoding at temperature 1."""
    target.release(0)
    if len(prompt_ids) > 1:
        target.prefill(0, prompt_ids[:-1])
    ids, rows = list(prompt_ids), []
    for _ in range(num_rows):
        [row] = target.score([ScoreRequest(0, (ids[-1],))])
        rows.append(row[0].clone())
        ids.append(int(torch.multinomial(row[0].float().softmax(-1), 1, generator=generator)))
    return Text(ids, len(prompt_ids), torch.stack(rows))


def random_tree(random: Random, oracle: Sequence[int], num_nodes: int, depth: int, vocab_size: int) -> Tree:
    """oracle: the text from the first node on. The tree has some of it on one path, in any place among its siblings;
    the others are anything."""
    tokens, parents, depths, path = [oracle[0]], [-1], [0], [0]
    wanted = random.below(min(len(oracle), depth + 1))
    while len(tokens) < num_nodes:
        if len(path) <= wanted and (random.below(3) == 0 or num_nodes - len(tokens) <= wanted + 1 - len(path)):
            parents.append(path[-1])
            path.append(len(tokens))
            tokens.append(oracle[len(path) - 1])
        else:
            # Mostly from the latest nodes, so that trees are deep as well as wide.
            open_nodes = [node for node, found in enumerate(depths) if found < depth]
            node = open_nodes[-1 - random.below(min(len(open_nodes), random.one_of((1, 4, 64))))]
            parents.append(node)
            token = random.below(vocab_size)
            tokens.append(token + (token == oracle[min(depths[node] + 1, len(oracle) - 1)]))
        depths.append(depths[parents[-1]] + 1)
    return Tree(tuple(min(token, vocab_size - 1) for token in tokens), tuple(parents), tuple(path))


def random_chain(random: Random, oracle: Sequence[int], num_drafts: int, vocab_size: int) -> Tree:
    """A chain that follows the text for a while."""
    num_right = random.between(0, min(num_drafts, len(oracle) - 1))
    tokens = list(oracle[: 1 + num_right])
    tokens += [random.below(vocab_size) for _ in range(num_drafts - num_right)]
    return Tree(tuple(tokens), tuple(range(-1, num_drafts)), tuple(range(num_right + 1)))


class Passes:
    """Random passes over texts in slot 0. `in_place`: of whether branches stand in place from pass to pass."""

    def __init__(self, target: Any, seed: int, in_place: Sequence[bool]) -> None:
        self.target, self.random, self.in_place = target, Random(seed), in_place
        self.num_rows = dict.fromkeys(in_place, 0)
        self.differences: list[dict[str, Any]] = []
        self.kinds: collections.Counter[str] = collections.Counter()

    def over(self, text: Text, num_passes: int) -> None:
        """So many passes; whenever the text's end is reached it begins again somewhere."""
        target, random = self.target, self.random
        target.release(0)
        for _ in range(num_passes):
            length, last = target.length(0), len(text.token_ids) - 1
            if length < text.start - 1 or length >= last:
                self._begin(text)
            elif random.below(8) == 0:
                target.rewind(0, random.between(text.start - 1, length))
            elif random.below(24) == 0:
                self._from_other_slot(text)
            self._one(text)

    def _begin(self, text: Text) -> None:
        """The prompt and some of the text, in chunks."""
        target, random = self.target, self.random
        length = random.between(text.start - 1, len(text.token_ids) - 2)
        if target.length(0) >= length or random.below(2):
            target.rewind(0, min(random.below(text.start), target.length(0)))
        while target.length(0) < length:
            have = target.length(0)
            size = random.one_of((1, 2, 3, 7, 16, 17, 24, 33, 64, 100, 512, 512))
            target.prefill(0, text.token_ids[have : min(have + size, length)])
        self.kinds["prefill"] += 1

    def _from_other_slot(self, text: Text) -> None:
        target, length = self.target, self.target.length(0)
        target.release(1)
        target.copy(0, 1, length)
        kept = self.random.below(length)
        target.release(0)
        target.copy(1, 0, kept)
        target.release(1)
        if length > kept:
            target.prefill(0, text.token_ids[kept:length])
        self.kinds["copy"] += 1

    def _one(self, text: Text) -> None:
        target, random = self.target, self.random
        length = target.length(0)
        oracle = text.token_ids[length:-1]
        kind = random.one_of(("plain", "chain", "chain", "tree", "tree", "tree", "tree"))
        if kind == "plain":
            tree = Tree((oracle[0],), (-1,), (0,))
        elif kind == "chain":
            tree = random_chain(random, oracle, random.between(1, MOST_DRAFTS), target.vocab_size)
        else:
            num_nodes = 1 + random.one_of((2, 3, 4, 6, 8, 11, 16, 20, 22, 24, 27, 31, 32, 40, 48, 56, 63, MOST_NODES))
            tree = random_tree(random, oracle, num_nodes, random.between(2, 10), target.vocab_size)
        in_place = random.one_of(self.in_place)
        target.keep_branches_in_place(in_place)
        parents = None if kind != "tree" else tree.parents
        beside = kind != "tree" and random.below(6) == 0
        requests = [ScoreRequest(0, tree.token_ids, parents)]
        if beside:
            target.release(1)
            target.prefill(1, text.token_ids[: random.between(1, 40)])
            requests.append(ScoreRequest(1, (5, 6)))
        rows = target.score(requests)[0]
        first = length - (text.start - 1)
        expected = text.rows[first : first + len(tree.path)]
        found = rows[list(tree.path)]
        self.num_rows[in_place] += len(tree.path)
        self.kinds[kind] += 1
        if not torch.equal(found, expected):
            wrong = [i for i in range(len(tree.path)) if not torch.equal(found[i], expected[i])]
            self.differences.append(
                {
                    "in_place": in_place,
                    "kind": kind,
                    "length": length,
                    "nodes": len(tree.token_ids),
                    "depths_wrong": wrong,
                    "path": tree.path,
                    "parents": tree.parents,
                    "most": float((found.float() - expected.float()).abs().max()),
                }
            )
        kept = random.between(0, len(tree.path))
        target.rewind(0, length + kept, tree.path[:kept] if kind == "tree" else ())


def texts(target: Any, tokenizer: Any, seed: int) -> Iterator[Text]:
    """Of every length in turn."""
    generator = torch.Generator().manual_seed(seed)
    words: list[int] = []
    for prompt in built_in():
        words += tokenizer(prompt.text)["input_ids"]
    random = Random(seed + 1)
    while True:
        for length in LENGTHS:
            length += random.below(16)
            begin = random.below(max(len(words) - length, 1))
            ids = (words[begin:] + words * (1 + length // len(words)))[:length]
            target.keep_branches_in_place(False)
            yield written(target, ids, NUM_ROWS, generator)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--passes", type=int, default=60, help="over each text")
    parser.add_argument("--in-place", choices=("on", "off", "both"), default="both")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target, tokenizer = load_target(dtype=args.dtype, invariant=True, num_slots=2, width=WIDEST)
    in_place = {"on": (True,), "off": (False,), "both": (True, False)}[args.in_place]
    passes = Passes(target, args.seed, in_place)
    end = time.monotonic() + args.seconds
    num_texts = 0
    for text in texts(target, tokenizer, args.seed):
        before = len(passes.differences)
        passes.over(text, args.passes)
        num_texts += 1
        for difference in passes.differences[before:]:
            print(json.dumps(difference), file=sys.stderr, flush=True)
        if time.monotonic() > end:
            break
    by_mode = collections.Counter("in place" if found["in_place"] else "copies" for found in passes.differences)
    rows = {("in place" if mode else "copies"): count for mode, count in passes.num_rows.items()}
    print(
        json.dumps(
            {
                "rows": rows,
                "passes that differ": dict(by_mode),
                "passes": dict(passes.kinds),
                "texts": num_texts,
                "shapes": target.shapes.name,
                "machine": machine(),
                "settings": vars(args),
            }
        )
    )


if __name__ == "__main__":
    main()
