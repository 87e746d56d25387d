"""Trees: several candidates at a position. `tree_drafter_of` grows them from any drafter's laws.

A tree has a source of laws (one for each family of drafters), and a builder, one in a file: `best_first`, `top_k` and
`static` choose candidates by their shares, which may look at the target's noise (`scores`); `sampled` draws them, for
verifiers that test drawn siblings.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from draftproof.config import DEFAULT_TREE_DEPTH, TREE_VERIFIERS
from draftproof.drafters.tree.best_first import BestFirst
from draftproof.drafters.tree.builder import TreeBuilder
from draftproof.drafters.tree.drafter import TreeDrafter
from draftproof.drafters.tree.sampled import SampledTreeDrafter
from draftproof.drafters.tree.settings import Shares
from draftproof.drafters.tree.source import LawSource
from draftproof.drafters.tree.sources import source_of
from draftproof.drafters.tree.static import Static, paths_for, shape_for
from draftproof.drafters.tree.top_k import TopK
from draftproof.drafters.tree.tuning import FixedShares, SharesPolicy, TunedShares, arms_of
from draftproof.drafters.tree.with_lookup import WithLookup
from draftproof.verify import get_verifier

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.drafters.base import Drafter

__all__ = [
    "BestFirst",
    "LawSource",
    "SampledTreeDrafter",
    "Shares",
    "Static",
    "TopK",
    "TreeBuilder",
    "TreeDrafter",
    "TunedShares",
    "shares_of",
    "source_of",
    "tree_drafter_of",
]

LOOKUP_MIN_WEIGHT: Final = 0.02
"""Candidates from counts that are less likely than that are not worth a row."""
NUM_PER_ROUND: Final = 8
NUM_PER_FREE_ROUND: Final = 32


def tree_drafter_of(drafter: Drafter, config: SpeculativeConfig) -> Drafter:
    """Trees from the laws of `drafter`, as `config` asks for them.

    Raises ParameterError for a drafter that has no laws to grow a tree from.
    """
    source = source_of(drafter)
    max_depth = config.max_tree_depth or DEFAULT_TREE_DEPTH
    max_depth = max_depth if source.max_depth is None else min(max_depth, source.max_depth)
    if config.verifier in TREE_VERIFIERS:
        verifier = get_verifier(config.verifier)
        if verifier.siblings is not None:
            shape = shape_for if verifier.supports_branches_below else paths_for
            sharpness = 1.0 if config.sharpness is None else config.sharpness
            return SampledTreeDrafter(source, verifier.siblings, max_depth=max_depth, shape=shape, sharpness=sharpness)
    if config.lookup_first is not None:
        source = WithLookup(source, config.lookup_first)
    builder = builder_of(config.tree_builder, source, max_depth)
    # Under exact-law verifiers nothing is learned: what an earlier request has taught would change a later one's text.
    learns = config.draft_length != "fixed" and config.verifier == "keyed"
    return TreeDrafter(source, builder, shares_of(config), learns_discounts=learns)


def builder_of(name: str | None, source: LawSource, max_depth: int) -> TreeBuilder:
    """The builder by name; best_first if there is none."""
    if name == "top_k":
        return TopK(max_depth)
    if name == "static":
        return Static(max_depth)
    if not source.costs_passes:
        lowest = math.log(LOOKUP_MIN_WEIGHT) if source.log_discount else -math.inf
        return BestFirst(max_depth, NUM_PER_FREE_ROUND, min_log_weight=lowest)
    return BestFirst(max_depth, NUM_PER_ROUND, max_rounds=max_depth - 1)


def shares_of(config: SpeculativeConfig) -> SharesPolicy:
    """Fixed where nothing is left to tune; else the arms that have what is given.

    Under exact-law verifiers nothing is tuned: what an earlier request has taught would change a later one's text.
    """
    is_given = config.noise_weight is not None and config.sharpness is not None
    if is_given or config.draft_length == "fixed" or config.verifier != "keyed":
        weight = 1.0 if config.noise_weight is None else config.noise_weight
        return FixedShares(Shares(weight, 1.0 if config.sharpness is None else config.sharpness))
    return TunedShares(arms_of(config.noise_weight, config.sharpness))
