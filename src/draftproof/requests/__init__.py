"""The table of requests: every parameter under every verifier and topology, found out by asking the engine."""

from draftproof.requests.examples import EXAMPLES, Example
from draftproof.requests.table import TOPOLOGIES, Cell, Row, cell, refused_elsewhere, rows, topology_of
from draftproof.requests.toy import toy_llm, toy_table, toy_tokenizer

__all__ = [
    "EXAMPLES",
    "TOPOLOGIES",
    "Cell",
    "Example",
    "Row",
    "cell",
    "refused_elsewhere",
    "rows",
    "topology_of",
    "toy_llm",
    "toy_table",
    "toy_tokenizer",
]
