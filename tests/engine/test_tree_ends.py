"""Trees near a request's end: as many nodes as ever, on paths that are no longer than what is left to be emitted."""

import pytest

from draftproof.core import Draft
from draftproof.drafters.base import grows_trees
from draftproof.engine import drafting
from draftproof.errors import DraftproofError
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.engine.tables import engine, ids, params, table

PROMPT = [1, 2, 3]


class Growing(TreeDrafter):
    """`grows_trees`; keeps what it was asked for. too_deep: tokens more on its path than it was asked for."""

    grows_trees = True

    def __init__(self, own_table, too_deep=0):
        super().__init__(own_table)
        self.asked, self.too_deep = [], too_deep

    def _propose(self, request):
        self.asked.append((len(request.context_ids), request.num_tokens, request.max_depth))
        # A node for each of the likeliest tokens, then a path below the first.
        context = tuple(request.context_ids)
        probs = self.table.probs(context)
        token_ids = sorted(range(len(probs)), key=lambda token_id: (-probs[token_id], token_id))[: request.num_tokens]
        parents, num_deeper = [-1] * len(token_ids), min(2, request.max_depth - 1) + self.too_deep
        node, path = 0, [token_ids[0]]
        while num_deeper and len(token_ids) < request.num_tokens:
            law = self.table.probs((*context, *path))
            path.append(max(range(len(law)), key=law.__getitem__))
            token_ids.append(path[-1])
            parents.append(node)
            node, num_deeper = len(token_ids) - 1, num_deeper - 1
        return Draft.of_token_ids(len(context), token_ids, parents)


def run(drafter, max_tokens=9, tokens=8):
    return engine(table(), drafter=drafter, tokens=tokens).generate([PROMPT], params(max_tokens=max_tokens, seed=4))


def test_nodes_are_no_fewer_at_the_end_and_paths_no_longer():
    drafter = Growing(table())
    [found] = run(drafter)
    plain = engine(table(), method=None).generate([PROMPT], params(max_tokens=9, seed=4))
    assert ids([found]) == ids(plain) and len(found.outputs[0].token_ids) == 9
    assert {num_tokens for _, num_tokens, _ in drafter.asked} == {8}
    assert all(start + depth == len(PROMPT) + 8 for start, _, depth in drafter.asked)
    assert min(depth for _, _, depth in drafter.asked) < 8


def test_a_chain_is_no_longer_than_what_is_left():
    chain, asked = TableDrafter(table(), ragged=False), []
    propose = chain._propose
    chain._propose = lambda request: asked.append((len(request.context_ids), request.num_tokens)) or propose(request)
    run(chain)
    assert not grows_trees(chain)
    assert all(start + num_tokens <= len(PROMPT) + 8 for start, num_tokens in asked)


def test_a_path_that_is_too_long_is_the_drafters_error():
    drafter = Growing(table(), too_deep=9)
    with pytest.raises(DraftproofError, match="a path of"):
        run(drafter, max_tokens=2, tokens=12)


def test_room_bounds_nodes():
    """A model that reads little has no room for a tree's nodes, whatever is left to be emitted."""
    drafter = Growing(table())
    llm = engine(table(), drafter=drafter, tokens=8, max_model_len=10)
    llm.generate([PROMPT], params(max_tokens=6, seed=4))
    assert all(start + num_tokens <= 10 for start, num_tokens, _ in drafter.asked)
    assert min(num_tokens for _, num_tokens, _ in drafter.asked) < 8


def test_whoever_cut_nodes_to_what_is_left_would_show(monkeypatch):
    monkeypatch.setattr(drafting, "grows_trees", lambda drafter: False)
    with pytest.raises(AssertionError):
        test_nodes_are_no_fewer_at_the_end_and_paths_no_longer()
