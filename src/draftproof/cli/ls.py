"""`draftproof ls`: the verifiers with their properties, the drafters, the sampler chains."""

from __future__ import annotations

from typing import Any

from draftproof.cli.output import new_table, print_document, print_table, write
from draftproof.cli.verb import verb
from draftproof.config import CHAINS, METHODS

EXAMPLES = ("draftproof ls", "draftproof ls --json")

DRAFTERS = {
    "ngram": ("prompt lookup: what followed the last tokens when they were there before", "point mass"),
    "suffix": ("suffix automaton over prompt and output: what most often followed the longest match", "point mass"),
    "forced": ("what a grammar forces, which the others begin with as well", "point mass"),
    "draft_model": ("a smaller model with the same tokenizer (--draft-model)", "its own, through the same chain"),
    "dflash": ("a block of tokens in one pass over the target's features (--draft-model)", "argmax, or its own"),
    "dspark": ("a block, and a Markov head from token to token (--draft-model)", "its own, dense or sparse"),
    "mtp": ("a multi-token-prediction layer over the target's hidden states (--draft-model)", "its own, dense"),
    "eagle3": ("a layer over three of the target's hidden states (--draft-model)", "its own, on its vocabulary"),
}
"""method -> (what it proposes, the law that its tokens are drawn from)."""


@verb("ls", examples=EXAMPLES)
def ls(**given: Any) -> None:
    """List verifiers, drafters and chains.

    replay: the same seed gives the same text with speculation on or off. exact-law: over a fresh seed the text has
    exactly the target's law. Lossless is meant with respect to a chain; each prints itself.
    """
    verifiers, drafters, chains = list_verifiers(), list_drafters(), list_chains()
    if given["json"]:
        print_document({"verifiers": verifiers, "drafters": drafters, "chains": chains})
        return
    table = new_table("verifier", "guarantee", "needs the draft's law", "trees", title="Verifiers")
    for verifier in verifiers:
        answers = ["yes" if verifier[name] else "no" for name in ("needs_draft_law", "supports_trees")]
        table.add_row(verifier["name"], verifier["guarantee"], *answers)
    print_table(table)
    table = new_table("method", "proposes", "law of its tokens", title="Drafters")
    for drafter in drafters:
        table.add_row(drafter["name"], drafter["proposes"], drafter["law"])
    print_table(table)
    write("Sampler chains\n\n" + "\n\n".join(chain["description"] for chain in chains) + "\n")


def list_verifiers() -> list[dict[str, Any]]:
    """The property table, read off the verifiers themselves."""
    from draftproof.verify import VERIFIERS

    return [
        {
            "name": verifier.name,
            "guarantee": verifier.guarantee,
            "needs_draft_law": verifier.needs_draft_law,
            "supports_trees": verifier.supports_trees,
        }
        for verifier in VERIFIERS.values()
    ]


def list_drafters() -> list[dict[str, str]]:
    """One entry for each method."""
    return [{"name": name, "proposes": DRAFTERS[name][0], "law": DRAFTERS[name][1]} for name in METHODS]


def list_chains() -> list[dict[str, str]]:
    """Each preset, as it prints itself."""
    from draftproof.sampling import SamplerChain

    return [{"name": name, "description": str(SamplerChain(preset=name))} for name in CHAINS]
