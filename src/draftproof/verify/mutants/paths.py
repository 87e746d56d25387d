"""Mutants of `multi_path_block`: the law of a path that was chosen among several."""

from __future__ import annotations

from typing import Final

from draftproof.core import ROOT, Draft, Law, Noise, Siblings
from draftproof.verify.base import TargetRows
from draftproof.verify.block import BlockOfPath
from draftproof.verify.exact import Step, target_rows
from draftproof.verify.multi_path_block import followed_path, select
from draftproof.verify.mutants.base import Mutant, enumerated, production
from draftproof.verify.mutants.sequences import DRAFT, TARGET
from draftproof.verify.proposals import SampledTree
from draftproof.verify.tables import Context

_PATHS: Final = SampledTree(DRAFT, (2, 1), Siblings.INDEPENDENT)


def _rows(context: Context, draft: Draft) -> TargetRows:
    return TargetRows(draft, target_rows(TARGET, context, draft))


def _chosen_path_with_the_drafters_law(context: Context, noise: Noise) -> tuple[int, ...]:
    draft = _PATHS(context, noise)
    rows = _rows(context, draft)
    nodes, _ = followed_path(draft, rows)
    return BlockOfPath(draft, rows, nodes, [draft.laws[node] for node in nodes]).verdict(noise).token_ids


def _dead_paths_counted(context: Context, noise: Noise) -> tuple[int, ...]:
    """Below the first token, as if every path had that token."""
    draft = _PATHS(context, noise)
    rows = _rows(context, draft)
    nodes, laws = followed_path(draft, rows)
    claimed: list[Law] = []
    for node, law in zip(nodes, laws, strict=True):
        parent = draft.parents[node]
        if parent == ROOT:
            claimed.append(law)
            continue
        claimed.append(select(rows.after(parent), draft.laws[node], [draft.token_ids[node]] * 2)[0])
    return BlockOfPath(draft, rows, nodes, claimed).verdict(noise).token_ids


def _longest_of_two(context: Context, noise: Noise) -> tuple[int, ...]:
    """Each path is verified by itself, exactly; the longer result is kept."""
    draft = _PATHS(context, noise)
    rows = _rows(context, draft)
    results = []
    for first in draft.children_of(ROOT):
        nodes = [first, *draft.children_of(first)]
        results.append(BlockOfPath(draft, rows, nodes, [draft.laws[node] for node in nodes]).verdict(noise).token_ids)
    return max(results, key=len)


def _mutant(name: str, after: str, step: Step) -> Mutant:
    return Mutant(
        name,
        after,
        enumerated(step, TARGET),
        production("multi_path_block", TARGET, _PATHS),
    )


MUTANTS: Final = (
    _mutant(
        "chosen path tested against the drafter's law",
        "T01: the law of a chosen token is not the law of a drawn one",
        _chosen_path_with_the_drafters_law,
    ),
    _mutant(
        "dead paths counted among the alive",
        "design rule, no public report: only paths with the same prefix compete",
        _dead_paths_counted,
    ),
    _mutant(
        "longest of several verified paths",
        "design rule, no public report: a choice among outcomes is no sample",
        _longest_of_two,
    ),
)
