"""`draftproof train` from nothing to a drafter that drafts: text, training, a kill in between, decoding."""

import json
import signal
import subprocess
import time

import pytest

from draftproof.config import LEARNED_METHODS
from tests.cli.conftest import command, environment
from tests.threads import one_thread

SMALL = (
    "--rows",
    "2",
    "--row-length",
    "48",
    "--num-anchors",
    "6",
    "--evaluate-every",
    "2",
    "--checkpoint-seconds",
    "0",
)


@pytest.fixture(autouse=True)
def on_one_thread(guarded):
    with one_thread():
        yield


@pytest.fixture(scope="module")
def text(run, tiny, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("text"))
    flags = ("--num-columns", "96", "--max-length", "48", "--batch-size", "8", "--prompt-share", "0.5")
    for num_tokens in (700, 1400):  # the second goes on behind the first's shards
        found = run("train", "data", "--target", tiny, "--out", folder, "--num-tokens", str(num_tokens), *flags)
        assert found.returncode == 0, found.stderr
        assert "tokens a second" in found.stderr or num_tokens == 700
    return folder


@pytest.mark.parametrize("method", LEARNED_METHODS)
def test_a_method(run, tiny, text, tmp_path, method):
    out = str(tmp_path / method)
    asked = ("train", method, "--target", tiny, "--data", text, "--out", out, *SMALL, "--json")
    for num_steps in (2, 4):
        found = run(*asked, "--num-steps", str(num_steps))
        assert found.returncode == 0, found.stderr
        document = json.loads(found.stdout)
        assert document["step"] == num_steps and document["acceptance_length"] >= 1.0
    sampling = ("--max-tokens", "12", "--seed", "3", "--temperature", "1")
    shared = ("generate", "--model", tiny, "one fish", *sampling, "--json")
    plain = json.loads(run(*shared).stdout)
    drafted = run(*shared, "--method", method, "--draft-model", out, "--num-speculative-tokens", "3")
    assert f"method={method}, packaging=" in drafted.stderr
    assert json.loads(drafted.stdout)["token_ids"] == plain["token_ids"]


def test_a_killed_process_goes_on(run, tiny, text, tmp_path):
    out = tmp_path / "killed"
    asked = ("train", "mtp", "--target", tiny, "--data", text, "--out", str(out), *SMALL)
    state = out / "training" / "state.pt"
    process = subprocess.Popen(
        command(*asked, "--num-steps", "1000000"),
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        ends = time.monotonic() + 120
        while not state.is_file() and time.monotonic() < ends:
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert state.is_file()
    found = run(*asked, "--num-steps", "1", "--json")
    steps = json.loads(found.stdout)["step"]
    found = run(*asked, "--num-steps", str(steps + 2), "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["step"] == steps + 2
    logged = [json.loads(line)["step"] for line in (out / "training/log.jsonl").read_text().splitlines()]
    assert logged == sorted(logged)
