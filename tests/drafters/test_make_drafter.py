"""The registry: method -> drafter, with the configuration's own settings."""

from dataclasses import dataclass

import pytest
import torch

from draftproof.config import METHODS, SpeculativeConfig
from draftproof.drafters import DRAFTERS, NgramDrafter, SuffixDrafter, make_drafter
from draftproof.drafters.draft_model import DraftModelDrafter
from draftproof.drafters.pruned import layers_of
from draftproof.errors import ModelError, ParameterError
from draftproof.sampling import SamplerChain
from tests.drafters.models import tiny_target
from tests.drafters.test_same_tokenizer import byte_level

CHAIN = SamplerChain()


def test_the_registry_holds_the_configurations_methods():
    assert tuple(DRAFTERS) == METHODS


def test_ngram_and_suffix_take_their_settings():
    config = SpeculativeConfig(method="ngram", prompt_lookup_min=3, prompt_lookup_max=7)
    ngram = make_drafter(config, tiny_target(1), None, CHAIN)
    assert isinstance(ngram, NgramDrafter) and (ngram.prompt_lookup_min, ngram.prompt_lookup_max) == (3, 7)
    config = SpeculativeConfig(method="suffix", prompt_lookup_min=40, prompt_lookup_max=64)
    suffix = make_drafter(config, tiny_target(1), None, CHAIN)
    assert isinstance(suffix, SuffixDrafter) and (suffix.min_match_length, suffix.max_match_length) == (40, 40)


def test_a_draft_model_is_loaded_with_the_targets_dtype_device_and_slots(tmp_path):
    target, tokenizer = tiny_target(1, num_slots=3, vocab_size=260, num_layers=3), byte_level()
    layers_of(target.model, (0, 2)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    config = SpeculativeConfig(method="draft_model", model=str(tmp_path))
    drafter = make_drafter(config, target, tokenizer, CHAIN)
    assert isinstance(drafter, DraftModelDrafter) and drafter.chain is CHAIN
    assert drafter.model is not target
    assert (drafter.model.num_slots, drafter.model.dtype, drafter.model.vocab_size) == (3, torch.float32, 260)


def test_a_draft_model_that_is_not_there_is_one_clear_error(tmp_path):
    config = SpeculativeConfig(method="draft_model", model=str(tmp_path / "nothing"))
    with pytest.raises(ModelError, match="nothing"):
        make_drafter(config, tiny_target(1), byte_level(), CHAIN)


def test_another_method_lists_those_that_are_there():
    @dataclass
    class Config:
        method: str = "oracle"

    with pytest.raises(ParameterError, match="one of ngram, suffix, forced, draft_model, dflash, dspark, mtp, eagle3"):
        make_drafter(Config(), tiny_target(1), None, CHAIN)
