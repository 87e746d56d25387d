"""The grid of `bench trees`: which ways of drafting and verifying are compared, at equal numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from draftproof.config import DEFAULT_TREE_DEPTH, TREE_VERIFIERS

CHAIN_LENGTH: Final = 8
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class Cell:
    """One way. rule: its name in tables. num_nodes: drafted tokens of a pass, the most of them for `auto`. fields: of
    SpeculativeConfig, without method and model.
    """

    rule: str
    num_nodes: int
    fields: dict[str, Any]

    @property
    def verifier(self) -> str:
        return str(self.fields["verifier"])


def cells(
    nodes: Sequence[int],
    noise_weights: Sequence[float],
    builders: Sequence[str],
    verifiers: Sequence[str],
    *,
    greedy: bool,
    is_lookup: bool,
) -> Iterator[Cell]:
    """Chains, keyed trees by builder and noise weight, rival rules on drawn trees, and what tunes itself.

    greedy: at temperature 0, where noise has no weight and drawn trees are chains. is_lookup: nothing is drawn.
    """
    chain = {"topology": "chain", "num_speculative_tokens": CHAIN_LENGTH, "draft_length": "fixed"}
    weights = [0.0] if greedy else list(noise_weights)
    if is_lookup or greedy:
        yield Cell("chain, keyed", CHAIN_LENGTH, {**chain, "verifier": "keyed"})
    else:
        for weight in weights:
            yield Cell(
                f"chain, keyed, zeta {weight:g}", CHAIN_LENGTH, {**chain, "verifier": "keyed", "noise_weight": weight}
            )
    for name in ("match", "rejection", "block"):
        if name in verifiers and not greedy:
            yield Cell(f"chain, {name}", CHAIN_LENGTH, {**chain, "verifier": name})
    yield Cell("chain, auto", CHAIN_LENGTH, {**chain, "verifier": "keyed", "draft_length": AUTO})
    for num_nodes in nodes:
        tree = {"topology": "tree", "num_tree_nodes": num_nodes, "draft_length": "fixed"}
        for builder in builders:
            for weight in weights:
                yield Cell(
                    f"tree, {builder}, zeta {weight:g}",
                    num_nodes,
                    {**tree, "verifier": "keyed", "tree_builder": builder, "noise_weight": weight},
                )
        for name in TREE_VERIFIERS:
            if name in verifiers and not greedy:
                depth = min(DEFAULT_TREE_DEPTH, num_nodes)
                yield Cell(f"drawn tree, {name}", num_nodes, {**tree, "verifier": name, "max_tree_depth": depth})
        for topology in ("tree", "auto"):
            fields = {**tree, "topology": topology, "verifier": "keyed", "draft_length": AUTO}
            yield Cell("tree, auto" if topology == "tree" else "chain or tree, auto", num_nodes, fields)
