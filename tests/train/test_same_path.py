"""What a drafter is trained on is what it does when it drafts: the same hidden states at the same places."""

import pytest
import torch

from draftproof.drafters.base import DraftRequest
from draftproof.drafters.learned.load import load_block_drafter, load_chain_drafter
from draftproof.noise import KeyedNoise
from draftproof.params import SamplingParams
from draftproof.sampling import History, SamplerChain
from draftproof.targets.hf import HFTarget
from draftproof.train.blocks import Blocks, block_hidden
from draftproof.train.chains import unroll
from draftproof.train.corpus import Corpus
from draftproof.train.packing import Packing
from draftproof.train.recipes import RECIPES
from draftproof.train.settings import TrainSettings
from draftproof.train.state import write_drafter
from tests.targets.models import VOCAB_SIZE
from tests.train.conftest import make_target

# float32 sums in another order, a few layers deep.
TOLERANCE = 2e-5


def recipe_of(method, target, text):
    settings = TrainSettings(method=method, rows=2, row_length=60, block_size=5, markov_rank=4, num_steps_ahead=3)
    corpus = Corpus(text, VOCAB_SIZE)
    recipe = RECIPES[method](target, corpus, settings, torch.Generator().manual_seed(1))
    batch = Packing(corpus, row_length=60, num_rows=2, seed=0).batch(0)
    return recipe, batch


def row_of(batch, row, number):
    """(first column, token ids) of one document of a packed row."""
    columns = (batch.documents[row] == number).nonzero().flatten()
    return int(columns[0]), batch.ids[row, columns].tolist()


def written(recipe, folder):
    write_drafter(folder, recipe.config(), recipe.tensors(), torch.float32)
    return str(folder)


def ask(context_ids, num_tokens):
    params = SamplerChain().resolve(SamplingParams(temperature=0.0), None, VOCAB_SIZE)
    return DraftRequest(0, context_ids, num_tokens, KeyedNoise(0), False, params, History(context_ids))


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("method", ["dflash", "dspark"])
def test_blocks(target, text, tmp_path, method, number):
    recipe, batch = recipe_of(method, target, text)
    begin, ids = row_of(batch, 0, number)
    anchor = min(9, len(ids) - 2)
    states = target.hidden_states(batch)
    taps = torch.cat([states[tap] for tap in recipe.layout.tap_ids], dim=-1)
    anchors = torch.tensor([[begin + anchor], [3]])
    unused = torch.zeros(2, 1, dtype=torch.bool)
    with torch.no_grad():
        trained = block_hidden(recipe.module, target.embedding, batch, taps, Blocks(anchors, unused, unused, unused))
    running = HFTarget(make_target().model, num_slots=1)
    drafter = load_block_drafter(written(recipe, tmp_path), running, SamplerChain(), method=method)
    running.prefill(0, ids[:anchor])
    request = ask(ids[: anchor + 1], 3)
    drafter.propose([request])
    torch.testing.assert_close(drafter.block_hidden([request])[0], trained[0, 0], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("method", ["eagle3", "mtp"])
def test_chains(target, text, tmp_path, method):
    """Along the text's own tokens: a drafter that is fed them has the unrolled steps' outputs."""
    recipe, batch = recipe_of(method, target, text)
    begin, ids = row_of(batch, 0, 1)
    last = 6
    with torch.no_grad():
        found = unroll(recipe.module, target, batch, 3, 1.0, torch.Generator().manual_seed(0), torch.float32)
    # position_share 1: every column is there; which row of `outputs` it is, the tokens say.
    wanted = torch.tensor(ids[last + 2 : last + 5])
    rows = [i for i in range(60) if torch.equal(found.token_ids[0, i], wanted)]
    running = HFTarget(make_target().model, num_slots=1)
    drafter = load_chain_drafter(written(recipe, tmp_path), running, SamplerChain(), method=method)
    context = ids[: last + 2]
    running.prefill(0, context[:-1])
    outputs = []
    score = drafter._score

    def watched(turns):
        outputs.append(turns[0].logits.clone())
        score(turns)
        # The text's own token is what comes next.
        turns[0].logits = torch.full_like(turns[0].logits, -1.0)
        turns[0].logits[ids[last + 1 + len(outputs)]] = 1.0

    drafter._score = watched
    drafter.propose([ask(context, 3)])
    differences = [float((torch.stack(outputs) - found.outputs[0, row]).abs().max()) for row in rows]
    assert min(differences) < TOLERANCE
