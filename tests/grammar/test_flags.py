"""The command line's flags for structured_outputs."""

import json

import click
import pytest
from click.testing import CliRunner

from draftproof.cli.sampling_flags import sampling_flags, sampling_params
from draftproof.errors import ParameterError
from draftproof.structured import StructuredOutputsParams


def parsed(*arguments):
    """The field that a command line gives."""
    found = []

    @click.command()
    @sampling_flags
    def command(**given):
        found.append(sampling_params(given).structured_outputs)

    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return found[0]


def test_each_kind_has_a_flag(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "integer"}))
    assert parsed() is None
    assert parsed("--json-schema", f"@{schema}") == StructuredOutputsParams(json={"type": "integer"})
    assert parsed("--json-schema", '{"type": "integer"}') == StructuredOutputsParams(json={"type": "integer"})
    assert parsed("--json-object", "--disable-any-whitespace") == StructuredOutputsParams(
        json_object=True, disable_any_whitespace=True
    )
    assert parsed("--regex", "@[a-z]+") == StructuredOutputsParams(regex="@[a-z]+")
    assert parsed("--choice", "yes", "--choice", "no") == StructuredOutputsParams(choice=["yes", "no"])
    assert parsed("--grammar", 'root ::= "a"') == StructuredOutputsParams(grammar='root ::= "a"')
    assert parsed("--regex", "a", "--structured-backend", "llguidance", "--start-after", "</think>") == (
        StructuredOutputsParams(regex="a", backend="llguidance", start_after="</think>")
    )
    tag = '{"type": "structural_tag", "format": {"type": "any_text"}}'
    assert parsed("--structural-tag", tag) == StructuredOutputsParams(structural_tag=tag)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--regex", "a", "--choice", "b"), "exactly one"),
        (("--start-after", "x"), "exactly one"),
        (("--grammar", "@/no/such/file"), "a file that can be read"),
        (("--json-schema", "{"), "not JSON"),
        (("--json-object", "--ignore-eos"), "ignore_eos"),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, message):
    with pytest.raises(ParameterError, match=message):
        parsed(*arguments)
