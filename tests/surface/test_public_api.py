"""The export list, the version, and what importing costs: no torch and no transformers before they are needed."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import draftproof

REPOSITORY = Path(__file__).parents[2]
HEAVY = ("numba", "scipy", "tensorflow", "torch", "transformers", "triton")


def loaded_after(code: str) -> list[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps(sorted({{name.split('.')[0] for name in sys.modules}})))"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def test_the_export_list_is_sorted_and_has_no_repeats() -> None:
    assert list(draftproof.__all__) == sorted(set(draftproof.__all__))


def test_every_exported_name_resolves() -> None:
    missing = [name for name in draftproof.__all__ if getattr(draftproof, name, None) is None]
    assert missing == []


def test_the_exported_names_are_listed_by_dir() -> None:
    assert set(draftproof.__all__) <= set(dir(draftproof))


@pytest.mark.parametrize("name", ["LLM", "SamplingParams", "DraftproofError"])
def test_the_main_names_are_public(name: str) -> None:
    assert name in draftproof.__all__


def test_every_public_error_is_exported() -> None:
    from draftproof import errors

    public = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.DraftproofError)
    }
    assert public <= set(draftproof.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        draftproof.no_such_name  # noqa: B018


def test_the_version_is_the_same_everywhere() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["version"]
    assert draftproof.__version__ == declared
    changelog = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[(\d[^\]]*)\]", changelog, re.MULTILINE)
    assert newest is not None and newest.group(1) == declared


def test_the_typing_marker_is_shipped() -> None:
    assert (REPOSITORY / "src" / "draftproof" / "py.typed").is_file()


def test_the_probe_sees_a_heavy_module() -> None:
    assert "torch" in loaded_after("import torch")


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert not set(HEAVY) & set(loaded_after("import draftproof"))


def test_the_parameters_load_nothing_heavy() -> None:
    modules = loaded_after("from draftproof import SamplingParams; SamplingParams(temperature=0.7)")
    assert not set(HEAVY) & set(modules)


def test_help_of_every_verb_loads_nothing_heavy() -> None:
    code = """
import click
from draftproof.cli import main

context = click.Context(main, info_name="draftproof")
verbs = main.list_commands(context)
for arguments in [["--help"], *([verb, "--help"] for verb in verbs)]:
    assert main.main(arguments, prog_name="draftproof", standalone_mode=False) in (0, None)
assert verbs
"""
    assert not set(HEAVY) & set(loaded_after(code))


def test_the_module_form_prints_help_and_loads_nothing_heavy() -> None:
    code = """
import runpy, sys

sys.argv = ["draftproof", "--help"]
try:
    runpy.run_module("draftproof.cli", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert stop.code in (0, None), stop.code
else:
    raise AssertionError("python -m draftproof.cli did not run the command")
"""
    assert not set(HEAVY) & set(loaded_after(code))
