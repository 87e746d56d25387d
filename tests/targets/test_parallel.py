"""A target over two processes: one decides, speculation changes nothing, and processes that go apart are found."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from draftproof import LLM
from draftproof.errors import ModelError, ParameterError
from draftproof.targets.gguf import read_gguf
from draftproof.targets.gguf_folder import write_folder
from draftproof.targets.hf import HFTarget
from draftproof.targets.load import load_target
from draftproof.targets.parallel import LeadingTarget, leaves_at_exit
from tests.targets.gguf_files import model_state, write_gguf
from tests.targets.models import VOCAB_SIZE, tiny_model
from tests.targets.parallel_worker import SCORED

WORKER = Path(__file__).with_name("parallel_worker.py")
ROOT = WORKER.parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose heads can be halved, with another model's tokenizer."""
    path = tmp_path_factory.mktemp("parallel")
    gguf = write_gguf(path / "m.gguf", model_state(True))
    (path / "other").mkdir()
    write_folder(read_gguf(gguf), path / "other")
    model = tiny_model("llama")
    model.save_pretrained(path / "model")
    for file in (path / "other").glob("tokenizer*"):
        (path / "model" / file.name).write_bytes(file.read_bytes())
    return path / "model"


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def run(folder: Path, out: Path, mode: str) -> subprocess.CompletedProcess[str]:
    return run_command(*TORCHRUN, str(WORKER), str(folder), str(out), mode)


def run_command(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("out") / "found.json"
    result = run(folder, out, "texts")
    assert result.returncode == 0, result.stderr[-3000:]
    outlived = [json.loads(Path(f"{out}.{rank}").read_text(encoding="utf-8")) for rank in range(2)]
    return json.loads(out.read_text(encoding="utf-8")) | {"outlived": outlived}


def test_no_group_outlives_its_program(found):
    assert found["outlived"] == [False, False]


def test_a_callers_group_is_left_to_it(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        with patch("atexit.register") as register, leaves_at_exit():
            pass
        register.assert_not_called()
    finally:
        torch.distributed.destroy_process_group()


def test_a_group_is_left_where_loading_fails(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    try:
        with patch("atexit.register") as register:
            with pytest.raises(ModelError), leaves_at_exit():
                torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
                raise ModelError("no weights")
            [(leave,)] = (call.args for call in register.call_args_list)
            leave()
        assert not torch.distributed.is_initialized()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_the_cache_is_cut(found):
    assert found["kv_heads"] == 1


def test_speculation_changes_nothing(found):
    assert found["speculative"] == found["plain"]
    assert found["drafted"] > 0 and all(len(ids) == 24 for ids in found["plain"])
    assert all(token < VOCAB_SIZE for ids in found["plain"] for token in ids)


def test_logits_are_those_of_one_process(found, folder):
    whole, _ = load_target(str(folder), dtype="float32", num_slots=2, max_model_len=256)
    expected = whole.score([SCORED])[0]
    logits = torch.tensor(found["logits"])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5 * float(expected.max() - expected.min()))


def test_a_refused_call_is_refused_everywhere_and_the_next_one_runs(found):
    assert found["refused"].startswith("length=7")
    assert len(found["logits"]) == len(SCORED.token_ids)


def test_learned_drafters_are_refused(found):
    assert "learned drafters need the target's head" in found["learned"]


def test_processes_that_go_apart_are_found(folder, tmp_path):
    out = tmp_path / "apart.json"
    result = run(folder, out, "apart")
    assert result.returncode != 0
    assert "holds slots of (0, 0) tokens where the leader's are (3, 0)" in json.loads(out.read_text())["error"]


def test_the_command_line_says_what_one_process_says(folder):
    flags = ["generate", "--model", str(folder), "--dtype", "float32", "a b a b a b", "--raw", "--max-tokens", "12"]
    flags += ["--ignore-eos", "--seed", "3", "--method", "ngram", "--json"]
    alone = run_command(sys.executable, "-m", "draftproof", *flags)
    cut = run_command(*TORCHRUN, "-m", "draftproof", *flags, "--tensor-parallel-size", "2")
    assert (alone.returncode, cut.returncode) == (0, 0), cut.stderr[-3000:]
    said = [json.loads(result.stdout.strip().splitlines()[-1])["token_ids"] for result in (alone, cut)]
    assert said[0] == said[1] and len(said[0]) == 12


def test_as_many_processes_as_were_started():
    with pytest.raises(ParameterError, match="torchrun --nproc-per-node 2"):
        LLM(tensor_parallel_size=2)


def test_a_gguf_file_is_not_cut(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", model_state(True))
    with pytest.raises(ParameterError, match="sharded=True.*GGUF"):
        load_target(str(path), sharded=True)


def test_one_process_leads_itself():
    target = HFTarget(tiny_model("llama"))
    with LeadingTarget(target) as leading:
        assert torch.equal(leading.score([SCORED])[0], HFTarget(tiny_model("llama")).score([SCORED])[0])
        assert leading.length(0) == len(SCORED.token_ids)
        with pytest.raises(AttributeError, match="no 'model' of its own"):
            _ = leading.model
    leading.close()
    with pytest.raises(ModelError, match="release of a target whose followers were let go"):
        leading.release(0)
