"""Drafters: what proposes tokens. One per file; `base` states the contract, `make_drafter` picks by method."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from draftproof.config import LEARNED_METHODS
from draftproof.drafters.auto_length import AutoLength
from draftproof.drafters.base import Drafter, DraftRequest
from draftproof.drafters.forced import ForcedDrafter
from draftproof.drafters.length import FixedLength, LengthPolicy
from draftproof.drafters.lookup_first import LookupFirst
from draftproof.drafters.ngram import NgramDrafter
from draftproof.drafters.stop_rule import MinDraftProb, StopRule, cut
from draftproof.drafters.suffix import DEFAULT_MAX_MATCH_LENGTH, SuffixDrafter
from draftproof.drafters.tree import tree_drafter_of
from draftproof.errors import ParameterError

if TYPE_CHECKING:
    from draftproof.config import SpeculativeConfig
    from draftproof.sampling import SamplerChain
    from draftproof.targets.base import Target

__all__ = [
    "DRAFTERS",
    "AutoLength",
    "DraftRequest",
    "Drafter",
    "FixedLength",
    "ForcedDrafter",
    "LengthPolicy",
    "MinDraftProb",
    "NgramDrafter",
    "StopRule",
    "SuffixDrafter",
    "cut",
    "make_drafter",
]


def make_drafter(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    """The drafter that `config.method` names.

    target, tokenizer, chain: the engine's; the draft model runs on the target's device in its dtype, has as many
    slots, and samples with the same chain.
    Raises ParameterError for an unknown method and for trees on a target that scores chains alone, and what loading a
    draft model or a learned drafter raises.
    """
    make = DRAFTERS.get(config.method)
    if make is None:
        raise ParameterError("method", config.method, f"one of {', '.join(DRAFTERS)}")
    if config.topology != "chain" and not target.supports_trees:
        raise ParameterError(
            "topology", config.topology, "'chain' for a target with a recurrent state, which follows one path"
        )
    drafter = make(config, target, tokenizer, chain)
    if config.topology != "chain":
        return tree_drafter_of(drafter, config)
    return drafter if config.lookup_first is None else LookupFirst(drafter, config.lookup_first)


def _make_ngram(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    return NgramDrafter(config.prompt_lookup_min, config.prompt_lookup_max)


def _make_suffix(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    longest = max(DEFAULT_MAX_MATCH_LENGTH, config.prompt_lookup_min)
    return SuffixDrafter(min_match_length=config.prompt_lookup_min, max_match_length=longest)


def _make_forced(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    return ForcedDrafter()


def _make_draft_model(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    from draftproof.drafters.draft_model import DraftModelDrafter
    from draftproof.targets.load import load_target

    if config.model is None:
        raise ParameterError("model", None, "the draft model's folder, GGUF file or name for the method 'draft_model'")
    # Drafts may depend on what shares a forward, so the drafter needs no fixed shapes.
    dtype = "auto" if getattr(target, "has_halves", False) else target.dtype
    model, draft_tokenizer = load_target(
        config.model, dtype=dtype, device=target.device, num_slots=target.num_slots, invariant=False
    )
    return DraftModelDrafter(model, chain, target_tokenizer=tokenizer, draft_tokenizer=draft_tokenizer)


def _make_learned(config: SpeculativeConfig, target: Target, tokenizer: Any, chain: SamplerChain) -> Drafter:
    from draftproof.drafters.learned.load import load_learned

    return load_learned(config, target, chain)


DRAFTERS: Final[dict[str, Callable[[SpeculativeConfig, Target, Any, SamplerChain], Drafter]]] = {
    "ngram": _make_ngram,
    "suffix": _make_suffix,
    "forced": _make_forced,
    "draft_model": _make_draft_model,
    **dict.fromkeys(LEARNED_METHODS, _make_learned),
}
"""method -> builder."""
