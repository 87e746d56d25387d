"""What only a process of its own can show: signals, pipes, what is imported."""

import os
import signal
import subprocess
import sys

import pytest

from tests.cli.conftest import command, environment

LONG = ("--max-tokens", "none", "--ignore-eos", "--dtype", "float32", "--show-drafts")


def start(*arguments: str) -> subprocess.Popen[bytes]:
    # A test run in the background of a shell inherits an ignored SIGINT, and Python would leave it ignored.
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


@pytest.mark.skipif(os.name == "nt", reason="sends a POSIX signal")
def test_ctrl_c_keeps_the_text_and_says_so(tiny: str) -> None:
    with start("hello", "-m", tiny, "--seed", "1", *LONG) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        process.send_signal(signal.SIGINT)
        rest, notes = process.communicate(timeout=60)
    assert process.returncode == 130, notes
    assert first and rest.endswith(b"\n")
    assert b"interrupted after" in notes and b"seed 1" in notes and b"Traceback" not in notes


@pytest.mark.skipif(os.name == "nt", reason="closes a POSIX pipe")
def test_a_broken_pipe_is_quiet(tiny: str) -> None:
    with start("hello", "-m", tiny, "--no-stats", *LONG[:-1]) as process:
        assert process.stdout is not None and process.stderr is not None
        os.read(process.stdout.fileno(), 1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) != 0


def test_the_module_reads_a_piped_prompt_and_refuses_what_is_not_utf_8() -> None:
    done = subprocess.run(command(), input=b"\xff\xfe", capture_output=True, env=environment(), timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"UTF-8" in done.stderr and done.stderr.count(b"\n") == 1


def test_help_of_every_verb_has_examples_and_loads_no_torch() -> None:
    code = """
import sys
from draftproof.cli import main
for verb in main.commands:
    main.main([verb, "--help"], prog_name="draftproof", standalone_mode=False)
heavy = {"torch", "transformers", "numpy", "rich"} & set(sys.modules)
if heavy:
    raise SystemExit(f"loaded {sorted(heavy)}")
print("number of verbs:", len(main.commands))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    num_verbs = int(done.stdout.rsplit(":", 1)[1])
    assert done.stdout.count("\nExamples:\n  ") == num_verbs == 9
