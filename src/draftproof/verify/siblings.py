"""Which children a verifier's rule can test: what each scheme of drawing siblings leaves in their laws.

A node's children are drawn by `Draft.draw_children` in one of the ways of `core.Siblings`, and each carries the law
that it was drawn from, given those before it. The rules differ in which of these they are exact for; a draft that was
drawn another way is refused where it meets the verifier.
"""

from __future__ import annotations

from collections import defaultdict

from draftproof.core import Draft, Law, PointMass, Siblings, Without
from draftproof.errors import DraftContractError


def children_by_parent(draft: Draft) -> dict[int, list[int]]:
    """Parent (ROOT: the context) -> its children, in the order in which they were drawn."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(draft.parents):
        children[parent].append(node)
    return children


def check_siblings(draft: Draft, scheme: Siblings, verifier: str) -> None:
    """Raises DraftContractError if some node's children were not drawn as `scheme` says."""
    fits = {
        Siblings.WITHOUT_REPLACEMENT: _differ,
        Siblings.INDEPENDENT: _share_a_law,
        Siblings.RANKED_AND_ONE: _are_ranked_but_one,
    }[scheme]
    for parent, nodes in children_by_parent(draft).items():
        token_ids, laws = [draft.token_ids[node] for node in nodes], [draft.laws[node] for node in nodes]
        if len(nodes) > 1 and not fits(token_ids, laws):
            raise DraftContractError(
                f"{verifier!r} tests siblings that are {scheme.value}, and the children of node {parent} are not; "
                f"draw them with Draft.draw_children(…, siblings=Siblings.{scheme.name}), or use 'keyed' or 'match'"
            )


def _differ(token_ids: list[int], laws: list[Law]) -> bool:
    """Each law is the first one without the tokens before; or all are point masses on tokens that differ."""
    if all(isinstance(law, PointMass) for law in laws):
        return len(set(token_ids)) == len(token_ids)
    return all(
        isinstance(law, Without) and law.base is laws[0] and law.excluded_ids == tuple(token_ids[: index + 1])
        for index, law in enumerate(laws[1:])
    )


def _share_a_law(token_ids: list[int], laws: list[Law]) -> bool:
    """All are drawn from one and the same law: equal numbers in another object may differ in their last bits."""
    return all(law is laws[0] for law in laws[1:])


def _are_ranked_but_one(token_ids: list[int], laws: list[Law]) -> bool:
    """Point masses on tokens that differ; one draw at most, the last, from a law without them."""
    *ranked, last = laws
    if not all(isinstance(law, PointMass) for law in ranked) or len(set(token_ids)) < len(token_ids):
        return False
    return isinstance(last, PointMass) or (
        isinstance(last, Without) and set(last.excluded_ids) == set(token_ids[: len(ranked)])
    )
