"""Opening folders, files and names; each bad input is one clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from draftproof.errors import ModelError, ParameterError, UnsupportedModelError
from draftproof.targets import cpu_linear
from draftproof.targets.cpu_linear import PackedLinear
from draftproof.targets.dtype import cpu_has_bf16, resolve_dtype
from draftproof.targets.gguf import read_gguf
from draftproof.targets.gguf_folder import write_folder
from draftproof.targets.hf import HFTarget
from draftproof.targets.load import load_target
from tests.targets.gguf_files import model_state, write_gguf
from tests.targets.models import COMMON, plain_logits, score_one, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    write_folder(read_gguf(write_gguf(tmp_path / "m.gguf", model_state(True))), path)
    return path


def test_a_folder_and_its_gguf_file_are_the_same_model(folder: Path) -> None:
    token_ids = [3, 14, 15, 9, 2, 6]
    rows = []
    for source in (folder, folder.parent / "m.gguf"):
        target, tokenizer = load_target(str(source), dtype="float32", num_slots=2)
        assert target.eos_token_ids == (0,) and target.num_slots == 2
        assert tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False) == "the"
        assert tokenizer.encode("the 12") == tokenizer.encode("the ") + tokenizer.encode("1") + tokenizer.encode("2")
        rows.append(score_one(target, 0, token_ids))
    assert torch.equal(rows[0], rows[1])
    want = plain_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), token_ids)
    # float32 sums of at most 64 terms in another order; the logits are of order 100.
    assert torch.allclose(rows[0], want, rtol=0, atol=1e-3)


def test_options_reach_the_target(folder: Path) -> None:
    target, _ = load_target(str(folder), dtype="bf16", max_model_len=50)
    assert (target.dtype, target.max_model_len, target.invariant) == (torch.bfloat16, 50, True)
    target, _ = load_target(str(folder), dtype="float32")
    assert not target.invariant
    slow_products = torch.backends.cpu.get_cpu_capability() != "AVX512"
    assert isinstance(target.model.lm_head, PackedLinear) == slow_products
    target, _ = load_target(str(folder), dtype=torch.float32, invariant=True)
    assert target.invariant and isinstance(target.model.lm_head, PackedLinear)
    for wrong in ({"dtype": "int8"}, {"dtype": torch.int8}, {"device": "nowhere"}, {"max_model_len": 129}):
        with pytest.raises(ParameterError):
            load_target(str(folder), **wrong)


@pytest.mark.parametrize("name", ["./missing", "/no/such/folder", "a/b/c", "missing.gguf", ""])
def test_a_missing_path_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="no folder|no GGUF file"):
        load_target(name)


def test_a_missing_hub_name_says_what_was_tried() -> None:
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set.*leave the model out"):
        load_target("no-owner-of-this-name/no-model")


def test_folders_that_hold_no_model(folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ModelError, match="no config.json"):
        load_target(str(empty))
    with pytest.raises(ModelError, match="is a file"):
        load_target(str(folder / "config.json"))
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ModelError, match="weights"):
        load_target(str(folder))
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="weights"):
        load_target(str(folder))
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="configuration"):
        load_target(str(folder))


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError, match="tokenizer"):
        load_target(str(folder))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_damaged_weights_are_named(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 4] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_target(str(folder))


def test_missing_weights_are_not_made_up(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight"):
        load_target(str(folder))


def save_config(folder: Path, config: Any) -> None:
    (folder / "config.json").write_text(json.dumps(config.to_dict(), default=str), encoding="utf-8")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (transformers.T5Config(), "decoder-only"),
        (transformers.Llama4TextConfig(), "chunked_attention"),
        (transformers.ViTConfig(), "no causal language model"),
    ],
    ids=["encoder-decoder", "chunked", "no language model"],
)
def test_models_that_cannot_be_decoded_exactly(folder: Path, config: Any, words: str) -> None:
    save_config(folder, config)
    with pytest.raises(UnsupportedModelError, match=words):
        load_target(str(folder))


def build(name: str) -> Any:
    small = COMMON | {"initializer_range": 0.02}
    if name == "rwkv":
        config = transformers.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
        return transformers.RwkvForCausalLM(config)
    if name == "shared layers":
        return transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(**small, num_kv_shared_layers=1))
    if name == "alibi":
        config = transformers.FalconConfig(
            vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True
        )
        return transformers.FalconForCausalLM(config)
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**small, use_bidirectional_attention=True))


@pytest.mark.parametrize("name", ["rwkv", "shared layers", "alibi", "bidirectional"])
def test_models_whose_caches_or_masks_are_not_plain(name: str) -> None:
    with pytest.raises(UnsupportedModelError):
        HFTarget(build(name))


def test_models_with_experts_sinks_or_compressed_keys_run() -> None:
    """The check against the model's own forward runs in HFTarget; nothing else is special about these."""
    deepseek = transformers.DeepseekV3Config(
        **(COMMON | {"num_key_value_heads": 4, "head_dim": None}),
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        n_routed_experts=4,
        moe_intermediate_size=16,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        first_k_dense_replace=1,
    )
    HFTarget(transformers.DeepseekV3ForCausalLM(deepseek))
    sinks = transformers.GptOssConfig(**COMMON, num_local_experts=4, sliding_window=8)
    HFTarget(transformers.GptOssForCausalLM(sinks))


@pytest.mark.parametrize(
    ("ignored", "attention"), [("position_ids", "sdpa"), ("position_ids", "eager"), ("attention_mask", "eager")]
)
def test_a_model_that_ignores_an_argument_is_found(
    monkeypatch: pytest.MonkeyPatch, ignored: str, attention: str
) -> None:
    """Attention that is ours needs no mask from the model."""
    model = tiny_model("llama")
    model.set_attn_implementation(attention)
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda **arguments: forward(**(arguments | {ignored: None})))
    with pytest.raises(UnsupportedModelError, match="can't be decoded exactly"):
        HFTarget(model)


def test_auto_dtype(tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    assert resolve_dtype("auto", cpu) == (torch.bfloat16 if cpu_has_bf16() else torch.float32)
    for flags, has in (
        ("fpu avx2", False),
        ("avx512_bf16 fpu", True),
        ("amx_bf16", True),
        ("avx512f avx_bf16x", False),
    ):
        (tmp_path / "info").write_text(f"processor\t: 0\nflags\t\t: {flags}\n", encoding="utf-8")
        assert cpu_has_bf16(tmp_path / "info") is has
    assert cpu_has_bf16(tmp_path / "absent") is False


@pytest.mark.parametrize(
    ("flags", "dtype", "packs"),
    [
        ("avx512f avx512_bf16", torch.bfloat16, True),
        ("avx512_bf16 amx_bf16", torch.bfloat16, True),
        ("avx2", torch.bfloat16, False),
        ("avx2", torch.float32, True),
        ("avx512_bf16 amx_bf16", torch.float32, True),
        ("avx512_bf16", torch.float16, False),
    ],
)
def test_what_is_packed_is_a_rule_of_the_machine(flags: str, dtype: torch.dtype, packs: bool, monkeypatch) -> None:
    monkeypatch.setattr(cpu_linear, "cpu_flags", lambda: frozenset(flags.split()))
    assert cpu_linear.can_pack(dtype, torch.device("cpu")) is packs
    assert cpu_linear.should_pack(dtype, torch.device("cpu"), True) is packs
    assert not cpu_linear.can_pack(dtype, torch.device("cuda"))
