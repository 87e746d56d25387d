"""A drafter made of the target's own layers: same class, shared tensors, the chosen layers in order."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from draftproof.drafters.pruned import layers_of
from draftproof.errors import ParameterError, UnsupportedModelError
from draftproof.targets.base import ScoreRequest
from draftproof.targets.cpu_linear import can_pack
from draftproof.targets.hf import HFTarget
from draftproof.targets.products import pack_linears
from tests.drafters.models import tiny_llama

SIZES = dict(
    vocab_size=24,
    hidden_size=16,
    intermediate_size=32,
    num_hidden_layers=4,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=64,
    initializer_range=0.4,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)


def model_of(kind, **options):
    state = torch.random.get_rng_state()
    torch.manual_seed(1)
    model = kind[1](kind[0](**SIZES, **options)).eval()
    torch.random.set_rng_state(state)
    return model


@pytest.mark.parametrize("kind", [(LlamaConfig, LlamaForCausalLM), (Qwen3Config, Qwen3ForCausalLM)])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("layers", [(0, 2, 3), (1,), (0, 1, 2, 3)])
@torch.no_grad()
def test_it_computes_what_the_target_would_without_the_other_layers(kind, tied, layers):
    target = model_of(kind, tie_word_embeddings=tied)
    expected_model = copy.deepcopy(target)
    expected_model.model.layers = nn.ModuleList(expected_model.model.layers[index] for index in layers)
    expected_model.config.num_hidden_layers = len(layers)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    expected = expected_model(input_ids=ids, use_cache=False).logits
    assert torch.equal(layers_of(target, layers)(input_ids=ids, use_cache=False).logits, expected)


def test_it_has_no_tensor_of_its_own_and_leaves_the_target_as_it_was():
    target = tiny_llama(1, num_layers=3)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    pruned = layers_of(target, (0, 2))
    owned = {tensor.data_ptr() for tensor in target.state_dict().values()}
    assert {tensor.data_ptr() for tensor in pruned.state_dict().values()} <= owned
    assert [layer.self_attn.layer_idx for layer in target.model.layers] == [0, 1, 2]
    assert [layer.self_attn.layer_idx for layer in pruned.model.layers] == [0, 1]
    assert all(module.config is target.config for module in target.modules() if hasattr(module, "config"))
    assert all(parameter.requires_grad for parameter in target.parameters())
    assert target.config.num_hidden_layers == 3 and pruned.config.num_hidden_layers == 2
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


@torch.no_grad()
def test_layers_whose_weights_were_packed_can_be_taken_too():
    """What `load_target` makes on a CPU has no weight left in its linear layers' state."""
    if not can_pack(torch.float32, torch.device("cpu")):
        pytest.skip("this torch has no packed linear kernel")
    target = tiny_llama(3, num_layers=3)
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    expected = layers_of(target, (0, 2))(input_ids=ids, use_cache=False).logits
    assert pack_linears(target) > 0
    pruned = layers_of(target, (0, 2))
    assert torch.allclose(pruned(input_ids=ids, use_cache=False).logits, expected, rtol=0, atol=2e-5)
    assert pruned.model.layers[1].mlp.up_proj.packed is target.model.layers[2].mlp.up_proj.packed


def test_it_is_a_target_with_a_cache_of_its_own():
    target = HFTarget(tiny_llama(2, num_layers=3))
    drafter = HFTarget(layers_of(target.model, (0, 2)))
    target.prefill(0, [1, 2, 3])
    drafter.prefill(0, [1, 2])
    (logits,) = drafter.score([ScoreRequest(0, (3, 4))])
    assert logits.shape == (2, 24) and torch.isfinite(logits).all()
    assert (target.length(0), drafter.length(0)) == (3, 4)


@pytest.mark.parametrize("layers", [(0, 3), (-1,), ()])
def test_layers_that_are_not_there_are_refused(layers):
    with pytest.raises(ParameterError, match="layers"):
        layers_of(tiny_llama(1, num_layers=3), layers)


def test_another_layout_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"Linear has no model\.layers"):
        layers_of(nn.Linear(2, 2))
