"""Reading checkpoints: packagings, their records, a probe where they are ambiguous, errors that say what to do."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof import LLM, SamplingParams
from draftproof.config import SpeculativeConfig
from draftproof.drafters.learned.checkpoint import Checkpoint
from draftproof.drafters.learned.layout import BlockLayout
from draftproof.drafters.learned.load import load_block_drafter, load_chain_drafter, load_learned
from draftproof.drafters.learned.packaging import block_layouts, default_taps
from draftproof.errors import ModelError, ParameterError, UnsupportedModelError
from draftproof.sampling import SamplerChain
from draftproof.targets.toy import TableTarget
from tests.drafters.learned.stub import GOLDENS, Golden
from tests.drafters.learned.tiny import KEYS, METHODS, VOCAB_SIZE, config_method, tiny_target, write_drafter
from tests.threads import one_thread


@pytest.fixture(scope="module")
def target():
    with one_thread():
        return tiny_target(num_slots=1, invariant=False)


def load(method, folder, target):
    name = config_method(method)
    loader = load_chain_drafter if name in ("mtp", "eagle3") else load_block_drafter
    return loader(str(folder), target, SamplerChain(), method=name)


RECORDS = {
    "zlab_v1": "tap_ids=(2,4), tap_convention=output of layer id, block_size=5, anchor_first=no, mask_token_id=39",
    "zlab_v1_sliding_scalars": "causal=(yes,no), output_multiplier=0.5, logit_softcap=3.0, embedding_scale=2.0",
    "zlab_v2": "conv_kernel_size=2, conv_group_size=4, selector_rank=6, selector_top_k=5",
    "specforge_dspark_rnn": "anchor_first=yes, mask_token_id=39, causal=no, markov_rank=6, markov_type=rnn",
    "specforge_domino_shifted": "packaging=SpecForge domino, tap_ids=(2,4)",
    "speculators_dspark": "packaging=speculators, tap_ids=(2,4), tap_convention=input of layer id, draft_vocab_size=28",
    "specforge_eagle3": "packaging=EAGLE/SpecForge, tap_ids=(1,3,5), tap_convention=output of layer id",
    "speculators_eagle3_fc_norm": "norm_each_tap=yes, recycles_normed=yes",
    "transformers_dflash": "packaging=transformers, tap_ids=(2,4)",
    "transformers_mtp": "packaging=DeepSeek-V3/GLM, tap_ids=(2), tap_convention=after the final norm",
    "speculators_mtp": "packaging=speculators, tap_ids=(6), tap_convention=after the final norm",
}


@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDENS.glob("*.safetensors")))
def test_the_record_is_printed(name, tmp_path, capsys):
    golden = Golden(name)
    load(golden.method, golden.write_checkpoint(tmp_path), golden.target(2 if name == "transformers_mtp" else 6))
    printed = capsys.readouterr().err
    assert printed.startswith(f"drafter {tmp_path}: method={golden.method}, packaging=")
    assert RECORDS.get(name, "") in printed


def layouts_of(config, num_target_layers=6, names=()):
    return block_layouts(config, tuple(names), num_target_layers, "here")[1]


INNER = {"mask_token_id": 63, "target_layer_ids": [1, 3]}


def test_section_2_10_anchors_and_taps():
    """One line each of the table of loader traps."""
    zlab = KEYS | {"block_size": 8, "dflash_config": INNER}
    deepspec = KEYS | {"block_size": 7, "num_anchors": 512, "markov_rank": 0, **INNER}
    rest = {
        "transformer_layer_config": KEYS,
        "aux_hidden_state_layer_ids": [2, 4],
        "mask_token_id": 63,
        "block_size": 8,
    }

    def speculators(kind="dflash", **more):
        return rest | {"speculators_model_type": kind} | more

    def asked(count):
        return {"speculators_config": {"proposal_methods": [{"speculative_tokens": count}]}}

    [one] = layouts_of(zlab)
    assert (one.anchor_first, one.num_drafts, one.first_slot, one.tap_ids) == (False, 7, 1, (2, 4))
    [one] = layouts_of(deepspec)
    assert (one.method, one.anchor_first, one.num_drafts, one.tap_ids) == ("dflash", True, 7, (2, 4))
    [one] = layouts_of(deepspec | {"target_layer_ids": [-1, 3], "markov_rank": 256})
    assert (one.method, one.tap_ids) == ("dspark", (0, 4))
    [one] = layouts_of(speculators())
    assert (one.anchor_first, one.tap_ids) == (False, (2, 4))
    [one] = layouts_of(speculators(**asked(8)))
    assert one.anchor_first
    [one] = layouts_of(speculators("dspark", **asked(7)))
    assert not one.anchor_first
    [one] = layouts_of(speculators("dspark", sample_from_anchor=True, **asked(7)))
    assert one.anchor_first
    assert [one.anchor_first for one in layouts_of(speculators("dspark"))] == [True, False]
    for projector, shift, first in (("dspark", False, True), ("domino", False, False), ("domino", True, True)):
        heads = {"projector_type": projector, "shift_label": shift, "gru_hidden_dim": 4, "emb_dim": 4, "markov_rank": 4}
        [one] = layouts_of(zlab | {"dflash_config": INNER | heads})
        assert one.anchor_first == first and one.packaging == f"SpecForge {projector}"
    assert len(layouts_of(KEYS | {"block_size": 8, **INNER})) == 4
    [one] = layouts_of(zlab | {"dflash_query_causal": True})
    assert one.causal == (True, True)
    sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}
    assert layouts_of(zlab | sliding)[0].causal == (True, False)
    assert layouts_of(zlab | sliding | {"is_causal": False})[0].causal == (False, False)


def test_default_taps():
    """The published lists of 36 layers and of one draft layer."""
    assert default_taps(36, 5) == [1, 9, 17, 25, 33]
    assert default_taps(64, 5) == [1, 16, 31, 46, 61]
    assert default_taps(36, 1) == [18]


def edit(folder, **changes):
    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in changes.items():
        config.pop(key, None) if value is None else config.update({key: value})
    path.write_text(json.dumps(config), encoding="utf-8")


def retensor(folder, change):
    path = Path(folder) / "model.safetensors"
    tensors = load_file(str(path))
    change(tensors)
    save_file(tensors, str(path))


def one_of(method):
    return {"dflash": "layers.1.self_attn.k_proj.weight", "dflash 2": "candidate_selector.hidden_projection.weight",
            "dspark": "markov_head.markov_w2.weight", "mtp": "model.layers.6.eh_proj.weight",
            "eagle3": "midlayer.self_attn.q_proj.weight"}[method]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_missing_mismatched_unknown_and_damaged_tensors(method, target, tmp_path):
    """The tensor's name, the shape found and the shape expected."""
    name = one_of(method)
    folder = write_drafter(method, tmp_path / "short")
    if method != "mtp":  # without eh_proj it is no MTP checkpoint: see below
        retensor(folder, lambda tensors: tensors.pop(name))
        with pytest.raises(ModelError, match=r"the tensor \S+ of shape \(\d+, \d+\) is missing"):
            load(method, folder, target)
    folder = write_drafter(method, tmp_path / "wide")
    retensor(folder, lambda tensors: tensors.update({name: torch.zeros(3, 5)}))
    with pytest.raises(
        ModelError, match=rf"the tensor {name} has shape \(3, 5\), and the configuration asks for \(\d+, \d+\)"
    ):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "more")
    more = "model.layers.6.experts_gate" if method == "mtp" else "layers.0.extra.weight"
    retensor(folder, lambda tensors: tensors.update({more: torch.zeros(2)}))
    with pytest.raises(ModelError, match=rf"no place for 1 of the checkpoint's tensors: {more} \(2,\)"):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "nan")
    retensor(folder, lambda tensors: tensors[name].fill_(torch.nan))
    with pytest.raises(ModelError, match=f"the tensor {name} holds NaN or infinite values"):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "cut")
    path = Path(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ModelError, match="model.safetensors is truncated or damaged"):
        load(method, folder, target)


def test_folders_that_are_none(target, tmp_path):
    with pytest.raises(ModelError, match="no folder at"):
        load("dflash", tmp_path / "absent", target)
    with pytest.raises(ModelError, match="no config.json"):
        load("dflash", tmp_path, target)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON"):
        load("dflash", tmp_path, target)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights"):
        load("dflash", tmp_path, target)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "gone.safetensors"}}')
    with pytest.raises(ModelError, match="the checkpoint's index names gone.safetensors"):
        Checkpoint(tmp_path).shape("fc.weight")


def test_shards_and_pickles(target, tmp_path):
    """An index over two files, and torch's own format, give the same drafter."""
    folder = Path(write_drafter("eagle3", tmp_path / "one"))
    tensors = load_file(str(folder / "model.safetensors"))
    shards = tmp_path / "shards"
    shards.mkdir()
    names = sorted(tensors)
    parts = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, some in parts.items():
        save_file({name: tensors[name] for name in some}, str(shards / file))
    index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(tensors, pickled / "pytorch_model.bin")
    weights = []
    for place in (folder, shards, pickled):
        if place != folder:
            (place / "config.json").write_text((folder / "config.json").read_text())
        weights.append(load("eagle3", place, target).model.state_dict())
    assert all(torch.equal(weights[0][name], other[name]) for other in weights[1:] for name in weights[0])
    for file in (shards / "b.safetensors", pickled / "pytorch_model.bin"):
        file.write_bytes(file.read_bytes()[:-50])
        with pytest.raises(ModelError, match=rf"{file.name} is truncated or damaged .*get the file anew"):
            load("eagle3", file.parent, target)


@pytest.mark.parametrize("method", METHODS)
def test_wrong_target(method, target, tmp_path):
    """Fewer layers than the taps, another vocabulary, another width, another embedding."""
    folder = write_drafter(method, tmp_path / "taps")
    if method == "mtp":
        retensor(folder, _rename_layer)
        with pytest.raises(
            ModelError, match=r"holds no MTP layer for a target of 6 layers.*it has model.layers.9.eh_proj.*train one"
        ):
            load(method, folder, target)
        return
    taps = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 7, 9]}} if method == "eagle3" else (
        {"target_layer_ids": [1, 9]} if method == "dspark" else {"dflash_config": INNER | {"target_layer_ids": [1, 9]}}
    )  # fmt: skip
    edit(folder, **taps)
    with pytest.raises(ModelError, match=r"hidden states \[.*10\], and this target has 6 layers; .*train one"):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "vocabulary", vocab_size=VOCAB_SIZE + 8)
    with pytest.raises(
        ModelError, match=r"vocabulary has 72 tokens, the target's 64; .*load it with that one, or train"
    ):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "width", hidden_size=48)
    with pytest.raises(ModelError, match="hidden size is 48.*embedding.*32; .*load it with that one"):
        load(method, folder, target)
    folder = write_drafter(method, tmp_path / "embedding")
    table = target.model.get_input_embeddings().weight.detach().clone()
    retensor(folder, lambda tensors: tensors.update({"embed_tokens.weight": table}))
    load(method, folder, target)
    retensor(folder, lambda tensors: tensors.update({"embed_tokens.weight": table + 0.3}))
    with pytest.raises(
        ModelError, match="embed_tokens.weight holds other numbers than this target's embedding; .*train"
    ):
        load(method, folder, target)
    retensor(folder, lambda tensors: tensors.update({"embed_tokens.weight": table[:9].clone()}))
    with pytest.raises(ModelError, match=r"embed_tokens.weight has shape \(9, 32\), and this target's.*\(64, 32\)"):
        load(method, folder, target)


def _rename_layer(tensors):
    for name in list(tensors):
        tensors[name.replace("layers.6.", "layers.9.")] = tensors.pop(name)


def test_vocabulary_maps(target, tmp_path):
    folder = write_drafter("eagle3", tmp_path)
    path = Path(folder) / "model.safetensors"
    right = load_file(str(path))["d2t"]
    for change, words in (
        (lambda t: t.pop("d2t"), "the tensor d2t that maps them is missing"),
        (lambda t: t.update(d2t=right[:5].clone()), r"d2t has shape \(5,\), not \(32,\)"),
        (lambda t: t.update(d2t=right + 40), "maps a draft token to 102, and the target's ids are 0 to 63"),
        (lambda t: t.update(d2t=-torch.arange(32)), "must map every draft token to another one"),
        (lambda t: t.update(t2d=torch.ones(64, dtype=torch.bool)), "t2d .* and d2t mark different tokens"),
    ):
        write_drafter("eagle3", tmp_path)
        retensor(folder, change)
        with pytest.raises(ModelError, match=words):
            load("eagle3", folder, target)


def test_configurations_that_are_refused(target, tmp_path):
    for number, (changes, kind, words) in enumerate((
        ({"attention_sink_bias": True}, UnsupportedModelError, "attention_sink_bias=True"),
        ({"hidden_act": "relu"}, UnsupportedModelError, "hidden_act='relu'"),
        ({"block_size": 1}, ModelError, "block_size=1"),
        ({"intermediate_size": None}, ModelError, "intermediate_size=None"),
        ({"layer_types": ["linear_attention"] * 2}, ModelError, "layer_types="),
        ({"layer_types": ["sliding_attention"] * 2}, ModelError, "sliding_window is None"),
        ({"dflash_config": {"target_layer_ids": [1, 3]}}, ModelError, "mask_token_id=None"),
    )):  # fmt: skip
        folder = write_drafter("dflash", tmp_path / str(number))
        edit(folder, **changes)
        with pytest.raises(kind, match=words):
            load("dflash", folder, target)


def test_method_length_and_target_must_fit(target, tmp_path):
    folder = write_drafter("dspark", tmp_path, block_size=8)
    with pytest.raises(ParameterError, match="method='dflash': must be 'dspark' for the checkpoint"):
        load("dflash", folder, target)
    config = SpeculativeConfig(method="dspark", model=folder, num_speculative_tokens=9)
    with pytest.raises(ParameterError, match="num_speculative_tokens=9: must be at most 8"):
        load_learned(config, target, SamplerChain())
    with pytest.raises(ParameterError, match="confidence_threshold=0.5: must be left out with the method dflash"):
        SpeculativeConfig(method="dflash", model=folder, confidence_threshold=0.5)
    with pytest.raises(ParameterError, match="confidence_threshold=1.5"):
        SpeculativeConfig(method="dspark", model=folder, confidence_threshold=1.5)
    config = SpeculativeConfig(method="dspark", model=folder, num_speculative_tokens=8, confidence_threshold=0.5)
    assert load_learned(config, target, SamplerChain()).confidence_threshold == 0.5
    with pytest.raises(ParameterError, match="model=None"):
        load_learned(SpeculativeConfig(method="dspark"), target, SamplerChain())
    with pytest.raises(UnsupportedModelError, match="TableTarget keeps no hidden states"):
        load_learned(config, object.__new__(TableTarget), SamplerChain())


@pytest.mark.parametrize("anchor_first", [True, False])
def test_probe_settles_the_anchor_rule(anchor_first, tmp_path, capsys):
    """A speculators dspark that doesn't say `sample_from_anchor`, made so that one rule alone is right."""
    target = _counting_target()
    folder = Path(write_drafter("dspark", tmp_path, block_size=8))
    retensor(folder, lambda tensors: _made_for(tensors, anchor_first))
    config = {"speculators_model_type": "dspark", "transformer_layer_config": KEYS, "block_size": 8,
              "aux_hidden_state_layer_ids": [2, 4], "mask_token_id": 63, "markov_rank": VOCAB_SIZE}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | {"enable_confidence_head": False}))
    drafter = load("dspark", folder, target)
    assert drafter.layout.anchor_first == anchor_first
    printed = capsys.readouterr().err
    assert "probed 2 layouts by accepted tokens a draft" in printed
    assert f"anchor_first={'yes' if anchor_first else 'no'}" in printed.splitlines()[-1]


def _counting_target():
    """Its next token after v is v + 1: layers that add nothing, an output layer that is the embedding moved by one.
    The mask's embedding is 0."""
    target = tiny_target(num_slots=1, invariant=False)
    model = target.model
    table = torch.randn(VOCAB_SIZE, 32, generator=torch.Generator().manual_seed(2))
    table[63] = 0.0
    model.model.embed_tokens.weight.data.copy_(table)
    model.get_output_embeddings().weight.data.copy_(table.roll(1, 0))
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return target


def _made_for(tensors, anchor_first):
    """Layers that add nothing: masked slots say nothing, the anchor's slot what its embedding says. Under the rule
    "anchor first" that is the right token; made for the other rule, it is the opposite, and the Markov head counts."""
    for name in [name for name in tensors if name.startswith("confidence_head")]:
        del tensors[name]
    for name in tensors:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensors[name])
    eye = torch.eye(VOCAB_SIZE)
    tensors["markov_head.markov_w1.weight"] = eye * (0.0 if anchor_first else 1.0)
    tensors["markov_head.markov_w2.weight"] = eye.roll(1, 0).contiguous()
    tensors["norm.weight"] = torch.ones(32) * (1.0 if anchor_first else -1.0)


def test_a_wrong_layout_costs_speed_alone(target, tmp_path):
    """Another anchor rule, other taps, another mask: the text is the same."""
    params = SamplingParams(seed=3, max_tokens=16, detokenize=False, ignore_eos=True)
    plain = LLM.from_target(target, None).generate([[1, 2, 3]], params)[0].outputs[0].token_ids
    folder = write_drafter("dflash", tmp_path, block_size=8)
    drafter = load("dflash", folder, target)
    for changes in ({"anchor_first": True}, {"tap_ids": (0, 5)}, {"mask_token_id": 1}, {"causal": (True, True)}):
        fields = {name: getattr(drafter.layout, name) for name in BlockLayout.__dataclass_fields__}
        drafter.model.layout = drafter.layout = BlockLayout(**(fields | changes))
        drafter.context.taps = target.request_taps(drafter.layout.tap_ids)
        config = {"num_speculative_tokens": 5, "draft_length": "fixed"}
        llm = LLM.from_target(target, None, drafter=drafter, speculative_config=config)
        assert llm.generate([[1, 2, 3]], params)[0].outputs[0].token_ids == plain
