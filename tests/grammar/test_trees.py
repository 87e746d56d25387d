"""Speculation on = off for trees under grammars: every builder, zeta, number of nodes and temperature, with penalties,
stop strings and stop tokens on. The drafter's laws know nothing of the grammar, so that trees hold forbidden nodes."""

import pytest

from draftproof import SamplingParams
from draftproof.drafters.tree import BestFirst, Shares, Static, TopK, TreeDrafter, TunedShares
from draftproof.drafters.tree.tuning import arms_of
from tests.drafters.tree.tables import TableSource
from tests.grammar.bytes_vocabulary import ByteTokenizer, QuickTable, engine, ids
from tests.grammar.test_replay import REGEX, SCHEMA

TOKENIZER = ByteTokenizer()
PROMPTS = [TOKENIZER.ids("abab"), TOKENIZER.ids('{"name'), TOKENIZER.ids("12")]
NUM_TOKENS = 16
BUILDERS = {
    "best_first": BestFirst(6, 6, max_rounds=4),
    "top_k": TopK(5, 4),
    "static": Static(5),
    "chain": BestFirst(6, 1, num_children=1),
}


def params(temperature):
    common = {"temperature": temperature, "max_tokens": NUM_TOKENS}
    return [
        SamplingParams(
            **common,
            seed=1,
            structured_outputs={"regex": REGEX + "|[a-z]{12,20}"},
            repetition_penalty=1.2,
            presence_penalty=0.4,
            stop=["zz"],
        ),
        SamplingParams(
            **common, seed=2, structured_outputs={"json": SCHEMA, "backend": "llguidance"}, frequency_penalty=0.3
        ),
        SamplingParams(
            **common,
            seed=3,
            structured_outputs={"regex": "[0-9a-f]*"},
            stop_token_ids=[TOKENIZER.ids("7")[0]],
            min_tokens=4,
            top_p=0.95,
        ),
    ]


class Source(TableSource):
    """Laws close to the target's, of the quick table that it decodes from."""

    def law(self, context):
        return self.table.law(context)


@pytest.fixture(scope="module")
def plain_ids():
    found = {}

    def of(temperature):
        if temperature not in found:
            found[temperature] = ids(engine(TOKENIZER, num_slots=3).generate(PROMPTS, params(temperature)))
        return found[temperature]

    return of


def counts(outputs, name):
    return sum(output.metrics.speculative_decoding[name] for output in outputs)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("num_nodes", [8, 32, 64])
@pytest.mark.parametrize("noise_weight", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("builder", BUILDERS)
def test_on_is_off(plain_ids, builder, noise_weight, num_nodes, temperature):
    drafter = TreeDrafter(Source(QuickTable(TOKENIZER)), BUILDERS[builder], Shares(noise_weight))
    llm = engine(TOKENIZER, num_slots=3, drafter=drafter, topology="tree", num_tree_nodes=num_nodes)
    outputs = llm.generate(PROMPTS, params(temperature))
    assert ids(outputs) == plain_ids(temperature)
    # Nothing is shown where no tree is cut to a path, and none holds a token that the grammar forbids.
    assert 0 < counts(outputs, "num_accepted_draft_tokens") < counts(outputs, "num_draft_tokens")


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_what_tunes_itself_emits_the_same(plain_ids, temperature):
    plans = TunedShares(arms_of(None, None))
    drafter = TreeDrafter(Source(QuickTable(TOKENIZER)), BUILDERS["best_first"], plans)
    llm = engine(TOKENIZER, num_slots=3, drafter=drafter, topology="auto", draft_length="auto", num_tree_nodes=16)
    for _ in range(3):
        outputs = llm.generate(PROMPTS, params(temperature))
        assert ids(outputs) == plain_ids(temperature)
    assert counts(outputs, "num_draft_tokens") + counts(outputs, "num_plain_steps") > 0
