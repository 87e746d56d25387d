"""Is a parameter honoured exactly, or refused, and in which words? Found out by running a request that sets it.

A cell is what became of one request on the toy target: it ran ("exact"; the walk over the table in tests/requests
proves the word), or an error refused it, whose text is the cell's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final

from draftproof.errors import DraftproofError, ParameterError, RequestError
from draftproof.outputs import GenerationFailed
from draftproof.params import SamplingParams
from draftproof.refusals import REFUSED
from draftproof.requests.examples import EXAMPLES
from draftproof.requests.toy import PROMPT, toy_llm
from draftproof.sampling import PRESETS
from draftproof.verify import VERIFIERS

TOPOLOGIES: Final = ("chain", "tree")
EXACT: Final = "exact"


@dataclass(frozen=True, slots=True)
class Cell:
    """text: "exact", or the refusal's text."""

    verifier: str
    topology: str
    text: str

    @property
    def is_exact(self) -> bool:
        """Whether the request ran."""
        return self.text == EXACT


@dataclass(frozen=True, slots=True)
class Row:
    """One field of SamplingParams. value: the example's, as Python writes it. presets: name -> its cell's text."""

    name: str
    value: str
    acts_on_law: bool
    cells: tuple[Cell, ...]
    presets: Mapping[str, str]


def rows() -> Iterator[Row]:
    """A row for every field, in SamplingParams' order. Raises ParameterError for a field without an example."""
    names = [item.name for item in fields(SamplingParams)]
    missing = [name for name in names if name not in EXAMPLES]
    if missing:
        raise ParameterError(
            "EXAMPLES", missing, "complete: an example for every field", "add it to requests/examples.py"
        )
    for name in EXAMPLES:
        example = EXAMPLES[name]
        value = example.written or repr(example.value)
        yield Row(
            name,
            value + "".join(f", {key}={other!r}" for key, other in example.beside.items()),
            example.acts_on_law,
            tuple(
                cell(name, verifier, topology)
                for topology in TOPOLOGIES
                for verifier in VERIFIERS
                if topology_of(verifier, topology).is_exact
            ),
            {preset: _tried(example.fields_of(name), "keyed", "chain", chain=preset) for preset in PRESETS},
        )


@cache
def topology_of(verifier: str, topology: str) -> Cell:
    """Whether a verifier takes the topology at all: what a request without further parameters meets."""
    return Cell(verifier, topology, _tried({}, verifier, topology))


def cell(name: str, verifier: str, topology: str) -> Cell:
    """What a request that sets the field `name` to its example meets."""
    return Cell(verifier, topology, _tried(EXAMPLES[name].fields_of(name), verifier, topology))


def params_of(given: Mapping[str, Any], verifier: str, seed: int = 1) -> SamplingParams:
    """The parameters of a request that shows `given`. Under greedy the temperature is 0."""
    defaults = {"seed": seed, "max_tokens": 6}
    return SamplingParams(**{**defaults, **given, **({"temperature": 0.0} if verifier == "greedy" else {})})


def refused_elsewhere() -> Iterator[tuple[str, str]]:
    """(name, the refusal's text) of every field of other engines that is refused."""
    for name, refusal in REFUSED.items():
        if name not in EXAMPLES:
            value: Any = next(other for other in (True, 2, "x") if other not in refusal.neutral)
            try:
                SamplingParams(**{name: value})
            except ParameterError as error:
                yield name, str(error)


def _tried(given: Mapping[str, Any], verifier: str, topology: str, **options: Any) -> str:
    try:
        toy_llm(verifier, topology, **options).generate([PROMPT], params_of(given, verifier))
    except GenerationFailed as error:
        failed = error.outputs[0].error
        return failed.message if failed is not None else str(error)
    except RequestError as error:
        return error.message
    except DraftproofError as error:
        return str(error)
    return EXACT
