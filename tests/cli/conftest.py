"""A tiny random model with a byte-level tokenizer and a chat template, saved once for the folder's tests."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from draftproof.cli import main

REPOSITORY = Path(__file__).parents[2]
SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MAX_MODEL_LEN = 4096

Run = Callable[..., "Done"]


def save_tiny_model(folder: Path, *, with_template: bool = True) -> Path:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: index for index, word in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0])
    fast.add_special_tokens({"additional_special_tokens": SPECIAL[1:]})
    if with_template:
        fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="session")
def untemplated(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_model(tmp_path_factory.mktemp("untemplated"), with_template=False))


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTPROOF_")}
    kept.pop("FORCE_COLOR", None)
    return {**kept, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1", **changes}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "draftproof", *arguments]


@dataclass(frozen=True)
class Done:
    """What a run of the command left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture(scope="session")
def run() -> Run:
    """Runs `draftproof` in this process. Keywords: stdin, and environment variables to set."""

    def run_here(*arguments: str, stdin: str = "", **changes: str) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("DRAFTPROOF_")] + ["FORCE_COLOR", "NO_COLOR"]:
                patch.delenv(name, raising=False)
            result = CliRunner().invoke(
                main, list(arguments), stdin, env=changes, catch_exceptions=False, prog_name="draftproof"
            )
        # Decoded here: Result.stdout would turn the carriage returns of a random model's text into line ends.
        return Done(result.exit_code, result.stdout_bytes.decode(), result.stderr_bytes.decode())

    return run_here
