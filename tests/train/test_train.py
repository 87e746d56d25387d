"""Training: the loss falls, a killed run ends with the same bits, and what comes out is loaded and accepted."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from draftproof import LLM, SamplingParams
from draftproof.errors import ModelError, ParameterError
from draftproof.targets.embedded import embedded_folder
from draftproof.targets.hf import HFTarget
from draftproof.train import loop
from draftproof.train.compiled import compile_layers
from draftproof.train.corpus import Document
from draftproof.train.packing import Packing
from draftproof.train.recipes import RECIPES
from draftproof.train.recipes.dspark import best_temperature
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed
from tests.targets.models import VOCAB_SIZE
from tests.train.conftest import make_target

METHODS = ("dflash", "dspark", "eagle3", "mtp")
SHARED = {"rows": 4, "row_length": 48, "num_anchors": 10, "block_size": 5, "markov_rank": 8, "num_steps_ahead": 3,
          "position_share": 0.5, "evaluate_every": 15, "learning_rate": 4e-3}  # fmt: skip


def settings_of(method, num_steps=30, **changes):
    return TrainSettings(method=method, num_steps=num_steps, **(SHARED | changes))


@pytest.fixture(scope="module")
def trained(target, text, tmp_path_factory):
    """method -> (folder, records): the first time that one is asked for."""
    made = {}

    def of(method):
        if method not in made:
            records = []
            folder = tmp_path_factory.mktemp(method)
            # A dflash slot guesses without seeing the token before it, which takes longer to learn.
            longer = {"num_steps": 160, "learning_rate": 1e-2} if method == "dflash" else {"num_steps": 60}
            loop.train(target, text, folder, settings_of(method, **longer), report=records.append)
            made[method] = (folder, records)
        return made[method]

    return of


@pytest.mark.parametrize("method", METHODS)
def test_loss_falls(trained, method):
    _, records = trained(method)
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    held_out = [record for record in records if record["kind"] == "evaluation"]
    assert losses[-1] < losses[0] - 0.1
    assert held_out[-1]["acceptance_length"] > 1.1 and held_out[-1]["greedy_length"] >= 1.0
    assert all(math.isfinite(record["gradient_norm"]) for record in records if record["kind"] == "train")


@pytest.mark.parametrize("method", METHODS)
def test_output_loads_and_is_accepted(trained, target, method):
    """Through the loader of section 1, in the engine; the text is plain decoding's, and drafts are accepted."""
    folder, _ = trained(method)
    running = HFTarget(make_target().model, num_slots=2)
    shared = {"temperature": 0.0, "max_tokens": 18, "detokenize": False, "ignore_eos": True}
    params = [SamplingParams(**shared) for _ in range(12)]
    prompts = [[1, 2, 5 + index] for index in range(12)]
    plain = [o.outputs[0].token_ids for o in LLM.from_target(running, None).generate(prompts, params)]
    config = {"method": method, "model": str(folder), "num_speculative_tokens": 3, "draft_length": "fixed"}
    outputs = LLM.from_target(running, None, speculative_config=config).generate(prompts, params)
    assert [output.outputs[0].token_ids for output in outputs] == plain
    figures = [output.metrics.speculative_decoding for output in outputs]
    drafted = sum(figure["num_draft_tokens"] for figure in figures)
    accepted = sum(figure["num_accepted_draft_tokens"] for figure in figures)
    # One token of 64 by chance.
    assert accepted > 8 / VOCAB_SIZE * drafted


@pytest.mark.parametrize("method", METHODS)
def test_kill_and_resume_gives_the_same_bits(target, text, tmp_path, monkeypatch, method):
    short = settings_of(method, 8, checkpoint_seconds=0.0, evaluate_every=4)
    loop.train(target, text, tmp_path / "whole", short)

    class Killed(Exception):
        pass

    step = loop._Run._train_step

    def dies(run):
        if run.step == 5:
            raise Killed
        step(run)

    monkeypatch.setattr(loop._Run, "_train_step", dies)
    with pytest.raises(Killed):
        loop.train(target, text, tmp_path / "parts", short)
    monkeypatch.setattr(loop._Run, "_train_step", step)
    (tmp_path / "parts" / "training" / "state.tmp").write_bytes(b"half a checkpoint")
    loop.train(target, text, tmp_path / "parts", short)
    whole, parts = (load_file(str(tmp_path / name / "model.safetensors")) for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    steps = [r["step"] for r in map(json.loads, (tmp_path / "parts/training/log.jsonl").read_text().splitlines())]
    assert steps == sorted(steps) and steps[-1] == 8
    assert (tmp_path / "parts/training/curves.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("method", ["dflash", "dspark", "eagle3"])
@pytest.mark.parametrize("save_head", [True, False])
def test_reduced_vocabulary(target, text, tmp_path, method, save_head):
    """The most frequent tokens alone, with or without an output layer of its own in the file."""
    settings = settings_of(method, 2, draft_vocab_size=20, save_head=save_head)
    loop.train(target, text, tmp_path, settings)
    tensors = load_file(str(tmp_path / "model.safetensors"))
    assert tensors["d2t"].shape == (20,) and int(tensors["t2d"].sum()) == 20
    assert ("lm_head.weight" in tensors) == save_head
    running = HFTarget(make_target().model, num_slots=1)
    config = {"method": method, "model": str(tmp_path), "num_speculative_tokens": 3, "draft_length": "fixed"}
    params = SamplingParams(seed=1, max_tokens=12, detokenize=False, ignore_eos=True)
    plain = LLM.from_target(running, None).generate([[1, 2, 3]], params)
    drafted = LLM.from_target(running, None, speculative_config=config).generate([[1, 2, 3]], params)
    assert drafted[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
    assert drafted[0].metrics.speculative_decoding["num_draft_tokens"] > 0


def test_minutes_end_a_run(target, text, tmp_path):
    last = loop.train(target, text, tmp_path, settings_of("mtp", 10**6, minutes=0.02))
    assert 1 <= last["step"] < 10**6
    assert (tmp_path / "model.safetensors").is_file()


def test_other_settings_are_refused(target, text, tmp_path):
    settings = settings_of("dflash", 1)
    loop.train(target, text, tmp_path, settings)
    with pytest.raises(ParameterError, match="block_size=6: must be 5, as when the run in"):
        loop.train(target, text, tmp_path, replace(settings, block_size=6))
    state = tmp_path / "training" / "state.pt"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(ModelError, match="can't be read"):
        loop.train(target, text, tmp_path, settings)


def test_a_loss_that_is_no_number_ends_the_run(target, text, tmp_path, monkeypatch):
    recipe = RECIPES["mtp"]
    loss = recipe.loss

    def spoiled(self, batch, generator):
        found, figures = loss(self, batch, generator)
        return found * float("nan"), figures

    monkeypatch.setattr(recipe, "loss", spoiled)
    with pytest.raises(ModelError, match="the loss is nan at step 1"):
        loop.train(target, text, tmp_path, settings_of("mtp", 3))
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "ngram"}, "one of dflash"),
        ({"num_steps": 0}, "num_steps=0"),
        ({"block_size": 1}, "block_size=1"),
        ({"minutes": 0.0}, "above 0"),
        ({"position_share": 0.0}, "above 0"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"markov_type": "lstm"}, "vanilla"),
        ({"loss": "square"}, "cross-entropy or distance"),
        ({"compare_at": ()}, "above 0"),
        ({"compare_at": (1.0, 0.0)}, "above 0"),
    ],
)
def test_bad_settings(fields, words):
    with pytest.raises(ParameterError, match=words):
        TrainSettings(**({"method": "dflash"} | fields))


@pytest.mark.parametrize(
    ("method", "fields", "words"),
    [
        ("mtp", {"draft_vocab_size": 9}, "left out for mtp"),
        ("mtp", {"tap_ids": (1,)}, "left out for mtp"),
        ("dflash", {"draft_vocab_size": VOCAB_SIZE + 1}, "1 to 64"),
        ("dflash", {"tap_ids": (9,)}, "1 to 4"),
        ("eagle3", {"tap_ids": (1, 1)}, "distinct"),
    ],
)
def test_settings_that_do_not_fit_the_target(target, text, tmp_path, method, fields, words):
    with pytest.raises(ParameterError, match=words):
        loop.train(target, text, tmp_path, settings_of(method, 1, **fields))


def test_confidence_is_calibrated(trained):
    """dspark's folder has a temperature for each slot, and the fit finds the one that logits were spoiled by."""
    folder, _ = trained("dspark")
    temperatures = json.loads((folder / "config.json").read_text())["confidence_temperatures"]
    assert len(temperatures) == 5 and all(0.5 <= t <= 3.1 for t in temperatures)
    logits = torch.linspace(-3, 3, 200)
    assert best_temperature(2.0 * logits, torch.sigmoid(logits)) == pytest.approx(2.0, rel=0.02)
    assert best_temperature(logits[:0], logits[:0]) == 1.0


def test_what_is_published_names_the_target_and_not_where_it_lies(trained):
    folder, _ = trained("mtp")
    assert json.loads((folder / "config.json").read_text())["_name_or_path"] == "tiny"
    place = embedded_folder()
    assert FrozenTarget.load(str(place), dtype="float32").name == place.name


def test_begins_with_another_drafters_weights(target, text, tmp_path):
    """One step at a tiny rate stays where the other run ended, its vocabulary and mask token included."""
    first, second = tmp_path / "first", tmp_path / "second"
    loop.train(target, text, first, settings_of("dspark", 12, draft_vocab_size=20, save_head=False))
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps(config | {"mask_token_id": 7}))
    again = {"draft_vocab_size": 20, "save_head": False, "learning_rate": 1e-9, "seed": 5}
    loop.train(target, text, second, settings_of("dspark", 1, init_from=str(first), **again))
    before, after = (load_file(str(folder / "model.safetensors")) for folder in (first, second))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((second / "config.json").read_text())["mask_token_id"] == 7
    with pytest.raises(ParameterError, match="20 or more, as in"):
        loop.train(target, text, tmp_path / "a", settings_of("dspark", 1, init_from=str(first), draft_vocab_size=19))
    with pytest.raises(ModelError, match=r"markov_w1.weight has shape \(64, 8\), and these settings ask for"):
        changed = again | {"markov_rank": 4}
        loop.train(target, text, tmp_path / "b", settings_of("dspark", 1, init_from=str(first), **changed))
    with pytest.raises(ModelError, match="holds no tensor"):
        loop.train(target, text, tmp_path / "c", settings_of("mtp", 1, init_from=str(first)))


def test_a_larger_vocabulary_keeps_the_drafters_tokens(target, text, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    loop.train(target, text, first, settings_of("dspark", 3, draft_vocab_size=20))
    loop.train(
        target, text, second, settings_of("dspark", 1, init_from=str(first), draft_vocab_size=27, learning_rate=1e-9)
    )
    before, after = (load_file(str(folder / "model.safetensors")) for folder in (first, second))
    old, new = (tensors["d2t"] + torch.arange(len(tensors["d2t"])) for tensors in (before, after))
    assert len(old) == 20 and len(new) == 27 and set(old.tolist()) < set(new.tolist())
    assert new.tolist() == sorted(new.tolist()) == after["t2d"].nonzero()[:, 0].tolist()
    name = "markov_head.markov_w2.weight"
    assert torch.equal(before[name], after[name][torch.searchsorted(new, old)])
    same = set(before) - {name, "d2t", "t2d", "lm_head.weight"}
    assert all(torch.equal(before[name], after[name]) for name in same)


def test_dflash_may_begin_with_dsparks_layers(target, text, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    loop.train(target, text, first, settings_of("dspark", 3))
    loop.train(target, text, second, settings_of("dflash", 1, init_from=str(first), learning_rate=1e-9))
    before, after = (load_file(str(folder / "model.safetensors")) for folder in (first, second))
    assert set(before) - set(after) and all(torch.equal(before[name], after[name]) for name in after)


def test_layers_that_are_added_change_nothing_at_first(target, text, tmp_path):
    """A deeper drafter begins as the shallower one, whose file is bfloat16: it says the same of held-out text."""
    first, second = tmp_path / "first", tmp_path / "second"
    sizes = {"draft_vocab_size": 20, "tap_ids": (1, 3)}
    last = loop.train(target, text, first, settings_of("dspark", 8, num_layers=1, **sizes))
    deeper = settings_of("dspark", 1, num_layers=3, init_from=str(first), learning_rate=1e-9, **sizes)
    found = loop.train(target, text, second, deeper)
    assert found["loss"] == pytest.approx(last["loss"], abs=1e-3)
    tensors = load_file(str(second / "model.safetensors"))
    for part in ("self_attn.o_proj", "mlp.down_proj"):
        assert float(tensors[f"layers.0.{part}.weight"].abs().max()) > 1e-2
        assert float(tensors[f"layers.2.{part}.weight"].abs().max()) < 1e-6


@pytest.mark.parametrize("method", ["dflash", "eagle3"])
def test_the_laws_distance_is_learned(target, text, tmp_path, method):
    settings = settings_of(method, 30, loss="distance", compare_at=(1.0, 0.5), last_turn_only=True)
    loop.train(target, text, tmp_path, settings)
    records = [json.loads(line) for line in (tmp_path / "training" / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if record["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]


def test_the_last_turn_alone_counts():
    """Documents with two turns of the target's: the user's is no label any more; one without forced tokens is whole."""
    two = Document(np.arange(6), np.array([False, True, True, False, True, True]))
    whole = Document(np.arange(5), np.ones(5, dtype=bool))
    corpus = [two, whole]
    marks = {}
    for last_turn_only in (False, True):
        rows = Packing(_Listed(corpus), row_length=16, num_rows=1, seed=0, last_turn_only=last_turn_only)
        batch = rows.batch(0)
        marks[last_turn_only] = int(batch.sampled.sum())
    assert marks == {False: 4 + 5, True: 2 + 5}


class _Listed(list):
    def lengths(self):
        return [len(document.token_ids) for document in self]


def test_compiled_layers_say_the_same():
    plain, compiled = make_target(), make_target()
    compile_layers(compiled.model.get_decoder().layers)
    ids = torch.arange(48).view(2, 24) % VOCAB_SIZE
    shape = {"positions": torch.arange(24).repeat(2, 1), "documents": torch.zeros(2, 24, dtype=torch.long)}
    batch = Packed(ids=ids, sampled=torch.ones(2, 24, dtype=torch.bool), **shape)
    for before, after in zip(plain.hidden_states(batch), compiled.hidden_states(batch), strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
