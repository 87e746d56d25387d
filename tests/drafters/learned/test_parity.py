"""Hidden states, logits, confidences and greedy tokens equal those of code that nobody here wrote (goldens/make.py).

Several steps with the cache kept between them, one sequence at a time and two of different lengths at once.
"""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned import load
from draftproof.drafters.learned.block_drafter import BlockDrafter
from draftproof.drafters.learned.lean_block import is_lean
from draftproof.drafters.learned.modules import Linear
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.targets.cpu_linear import PackedLinear
from tests.drafters.learned.stub import GOLDENS, Golden

NAMES = sorted(path.stem for path in GOLDENS.glob("*.safetensors"))
# float32 with logits of a few units; the bar.
TOLERANCE = 1e-5


def test_every_package_has_goldens():
    assert {name.split("_")[0] for name in NAMES} == {"zlab", "specforge", "speculators", "transformers"}
    assert {Golden(name).method for name in NAMES} == {"dflash", "dspark", "eagle3", "mtp"}


def loaded(golden, folder, target):
    opened = load.load_block_drafter if golden.method in ("dflash", "dspark") else load.load_chain_drafter
    return opened(str(golden.write_checkpoint(folder)), target, SamplerChain(), method=golden.method)


def request(target, slot, context_ids, num_tokens):
    params = SamplerChain().resolve(SamplingParams(temperature=0.0), None, target.vocab_size)
    return DraftRequest(slot, context_ids, num_tokens, KeyedNoise(0), False, params, History(context_ids))


def watch(drafter):
    """The logits that every token is drawn from, by slot, in order."""
    seen = {0: [], 1: []}
    laws = drafter.drawing.laws

    def watched(method, turns, logits, **rest):
        for row, turn in enumerate(turns):
            seen[turn.request.slot].append(logits[row])
        return laws(method, turns, logits, **rest)

    # `Drawing` has slots: the class's method is what can be put in place of.
    drafter.drawing = type("Watched", (), {"laws": staticmethod(watched), "draw": drafter.drawing.draw})()
    return seen


def packed_output(target):
    """A target whose output layer is packed, as those that `load_target` packs have it."""
    if isinstance(target.model, SimpleNamespace):
        output = PackedLinear(target.model.get_output_embeddings().weight, None)
        target.model.get_output_embeddings = lambda: output


@pytest.mark.parametrize("together", [False, True], ids=["batch 1", "ragged batch"])
@pytest.mark.parametrize("name", NAMES)
def test_parity(name, together, tmp_path):
    compare(name, together, tmp_path, packs=False)


@pytest.mark.parametrize("together", [False, True], ids=["batch 1", "ragged batch"])
@pytest.mark.parametrize("name", NAMES)
def test_parity_of_packed_products(name, together, tmp_path):
    """As they run on processors where packing pays."""
    compare(name, together, tmp_path, packs=True)


def compare(name, together, folder, packs):
    golden = Golden(name)
    target = golden.target(2 if name == "transformers_mtp" else 6)
    if packs:
        packed_output(target)
    with mock.patch.object(load, "product_kind", lambda *_, **__: PackedLinear if packs else None):
        drafter = loaded(golden, folder, target)
    kinds = {type(module) for module in drafter.model.modules()}
    assert (PackedLinear in kinds) == packs
    assert not packs or not kinds & {Linear, torch.nn.Linear}
    seen = watch(drafter)
    is_block = isinstance(drafter, BlockDrafter)
    assert not is_block or (drafter.host is not None) == (packs and is_lean(drafter.model))
    num_tokens = len(next(iter(golden.facts["tokens"].values())))
    steps = golden.facts["steps"]
    # In the batch the second sequence is a step ahead, so contexts and new positions differ in number.
    rounds = zip(steps[:-1], steps[1:], strict=True) if together else [(step, None) for step in steps]
    compared = 0
    for first, second in rounds:
        asked = [(0, first)] if second is None else [(0, first), (1, second)]
        for slot, step in asked:
            target.lengths[slot] = step - 1
        requests = [request(target, slot, golden.ids[slot][:step], num_tokens) for slot, step in asked]
        for rows in seen.values():
            rows.clear()
        drafts = drafter.propose(requests)
        hidden = drafter.block_hidden(requests) if is_block else None
        for row, (slot, step) in enumerate(asked):
            assert list(drafts[row].token_ids) == golden.facts["tokens"][f"{slot}.{step}"]
            if hidden is not None:
                torch.testing.assert_close(
                    hidden[row], golden.tensors[f"hidden.{slot}.{step}"], atol=TOLERANCE, rtol=TOLERANCE
                )
            if hidden is not None and drafter.layout.selector_rank:
                # The law is made of the candidates' scores; the rows that they are chosen from are compared.
                seen[slot] = list(drafter.model.scaled(drafter.ends.logits(hidden[row, 1:])))
            if seen[slot]:
                found, expected = torch.stack(seen[slot]), golden.tensors[f"logits.{slot}.{step}"]
                if found.shape[-1] != expected.shape[-1]:
                    found = found[:, golden.facts["vocab_ids"]]
                torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=TOLERANCE)
                compared += 1
    assert compared == len(steps) if not together else compared == 2 * (len(steps) - 1)


@pytest.mark.parametrize("name", [name for name in NAMES if "dspark" in name])
def test_confidence(name, tmp_path):
    """Every slot's probability of acceptance, along the greedy tokens."""
    golden = Golden(name)
    target = golden.target()
    drafter = loaded(golden, tmp_path, target)
    markov, head = drafter.model.markov_head, drafter.model.confidence_head
    for step in golden.facts["steps"]:
        target.lengths[0] = step - 1
        asked = [request(target, 0, golden.ids[0][:step], drafter.layout.num_drafts)]
        [draft] = drafter.propose(asked)
        hidden = drafter.block_hidden(asked)[0]
        previous = torch.tensor([golden.ids[0][step - 1], *draft.token_ids[:-1]])
        features = torch.cat((hidden, markov.embed(previous)), dim=-1)
        expected = golden.tensors[f"confidence.0.{step}"].flatten()
        torch.testing.assert_close(head.probability(features, 0), expected, atol=TOLERANCE, rtol=TOLERANCE)
