"""docs/requests.md is walked: every word "exact" in it is proved, every refusal is what the engine says."""

from dataclasses import fields
from fractions import Fraction
from functools import cache

import pytest

from draftproof import ParameterError, SamplingParams
from draftproof.refusals import REFUSED
from draftproof.requests import EXAMPLES, TOPOLOGIES, topology_of, toy_llm, toy_table
from draftproof.requests.table import params_of, rows
from draftproof.requests.toy import PROMPT as TOY_PROMPT
from draftproof.verify import VERIFIERS
from draftproof.verify.combinations import shapes_of, takes_ranks
from draftproof.verify.exact import enumerate_steps, speculative_step
from draftproof.verify.proposals import Ranked, Sampled, SampledTree
from draftproof.verify.tables import Reformed
from tests.engine.drafting import TableDrafter, TreeDrafter
from tests.requests.request_table import PROMPT, RequestTable, fields_for, raw_table

NAMES = [item.name for item in fields(SamplingParams)]
ACTING = [name for name in NAMES if name in EXAMPLES and EXAMPLES[name].acts_on_law]
DRAFTERS = {"chain": TableDrafter, "tree": TreeDrafter}
REPLAYING = [name for name, verifier in VERIFIERS.items() if verifier.guarantee == "replay"]


def allowed(given, verifier):
    """The parameters, or None where the request is refused before any law is asked for."""
    try:
        return (
            {**given, **({"temperature": 0.0} if verifier == "greedy" else {})} if params_of(given, verifier) else None
        )
    except ParameterError:
        return None


def test_every_field_has_a_row():
    assert set(EXAMPLES) == set(NAMES), "an example for every field of SamplingParams, and for nothing else"
    assert not set(REFUSED) & set(NAMES), "what is a field is not refused as another engine's"


def test_a_field_without_a_row_fails_the_build(monkeypatch):
    from draftproof.requests import table

    monkeypatch.setattr(table, "EXAMPLES", {name: EXAMPLES[name] for name in NAMES if name != "min_p"})
    with pytest.raises(ParameterError, match="an example for every field.*requests/examples.py"):
        next(rows())


def test_the_page_is_fresh():
    from tools.gen_requests_docs import PAGE, page

    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tools.gen_requests_docs"


@pytest.fixture(scope="module")
def plain_laws():
    table = RequestTable({})
    return lambda context: table.probs(context)


CONTEXTS = [(), (1,), (2,), (1, 2), (2, 2), (1, 1), (2, 1), (1, 2, 1), (2, 1, 2), (2, 2, 1, 2)]


@pytest.mark.parametrize("name", ACTING)
def test_what_is_said_to_act_on_the_law_does(name, plain_laws):
    """Otherwise the proofs below would prove that a parameter is ignored."""
    table = request_table(name, False)
    assert any(table.probs(PROMPT + context) != plain_laws(PROMPT + context) for context in CONTEXTS)


@cache
def request_table(name, greedy):
    """One table for all verifiers and topologies: its laws are made once."""
    return RequestTable({**fields_for(name), **({"temperature": 0.0} if greedy else {})})


def shape_of(verifier, topology):
    """The smallest shapes with a second level: a chain of two, two children of which one has a child."""
    return (1, 1) if topology == "chain" else next(shape for shape in shapes_of(verifier) if shape[0] > 1)


def proposer_of(verifier, shape):
    draft = raw_table(seed=8)
    if verifier.needs_draft_law and set(shape) == {1}:
        return Sampled(Reformed(draft, "Dense"), (1,))
    if takes_ranks(verifier, shape):
        return Ranked(draft, shape)
    return SampledTree(Reformed(draft, "Dense"), (2,), verifier.siblings)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", ACTING)
def test_the_joint_law_of_two_passes_is_the_request_s_own(name, topology):
    """In fractions, for every verifier that takes the topology: the difference is 0, and keyed paths replay."""
    for verifier_name, verifier in VERIFIERS.items():
        given = allowed(fields_for(name), verifier_name)
        if given is None or (topology == "tree" and not verifier.supports_trees):
            continue
        target = request_table(name, verifier_name == "greedy")
        drafter = proposer_of(verifier, shape_of(verifier, topology))
        step = speculative_step(verifier, target, drafter)
        found = enumerate_steps(step, target, 2, PROMPT, replay=verifier.guarantee == "replay")
        assert found.max_error == Fraction(0), verifier_name
        assert found.num_replay_mismatches == 0, verifier_name
        assert found.num_paths > 0


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("name", NAMES)
def test_speculation_on_is_off(name, topology):
    """Tokens, text, ending and log-probabilities of every parameter under the replay verifiers."""
    num_accepted = 0
    for verifier in REPLAYING:
        given = EXAMPLES[name].fields_of(name)
        if allowed(given, verifier) is None:
            continue
        plain, speculative = toy_llm(None), toy_llm(verifier, topology, drafter=DRAFTERS[topology](toy_table()))
        for seed in (2, 4, 5):
            params = params_of({"logprobs": 2, "max_tokens": 16, "seed": seed, **given}, verifier)
            (expected,) = plain.generate([TOY_PROMPT], params)
            (found,) = speculative.generate([TOY_PROMPT], params)
            assert len(found.outputs) == len(expected.outputs) == params.n
            for one, other in zip(found.outputs, expected.outputs, strict=True):
                assert one.token_ids == other.token_ids and one.text == other.text
                assert (one.finish_reason, one.stop_reason) == (other.finish_reason, other.stop_reason)
                assert one.logprobs == other.logprobs and one.cumulative_logprob == other.cumulative_logprob
            assert found.prompt_logprobs == expected.prompt_logprobs and found.seed == expected.seed
            num_accepted += sum(sum(one.from_draft) for one in found.outputs)
    assert num_accepted > 0, "nothing was drafted and accepted: equality shows nothing"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ACTING])
def test_what_is_asked_for_shows(name):
    """Each of the other parameters changes what a request returns, for one of a few seeds."""
    llm = toy_llm(None)

    def returned(fields, seed):
        output = llm.generate([TOY_PROMPT], SamplingParams(**{"seed": seed, "max_tokens": 24, **fields}))[0]
        return {**output.to_dict(), "metrics": None, "request_id": None, "seed": None}

    example = EXAMPLES[name]
    assert any(returned(example.fields_of(name), seed) != returned(example.beside, seed) for seed in range(1, 9))


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_topologies_are_what_the_registry_says(verifier):
    assert topology_of(verifier, "chain").is_exact
    assert topology_of(verifier, "tree").is_exact == VERIFIERS[verifier].supports_trees
