"""Tiny multi-token drafters in transformers' own layout, for audits of its MTP and DFlash generation.

Target: the Llama of `benchmarks.audit_packages`, random weights. `with_mtp`: the same weights with MTP layers behind
them in one checkpoint, as transformers loads them; `dflash`: its DFlash assistant over the target's hidden states. Both
are distilled for some seconds on the target's own samples, so that drafts are now accepted and now rejected; how good
they are makes no difference to the law that an audit tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.modeling_layers import MtpModel

NUM_TEXTS: Final = 256
LENGTH: Final = 40
BATCH: Final = 64
MASK_ID: Final = 0


class LlamaWithMtp(LlamaForCausalLM):  # type: ignore[misc]
    """A Llama whose checkpoint holds MTP layers after its own, as DeepSeek's do."""

    _keys_to_ignore_on_load_unexpected = (r"model\.layers\.[2-9]\.",)


def texts(target: Any, generator: torch.Generator) -> torch.Tensor:
    """[NUM_TEXTS, LENGTH] token ids: four of chance, then the target's samples at temperature 1."""
    ids = torch.randint(0, target.config.vocab_size, (NUM_TEXTS, 4), generator=generator)
    with torch.no_grad():
        while ids.shape[1] < LENGTH:
            law = target(ids).logits[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(law, 1, generator=generator)], 1)
    return ids


def with_mtp(target: Any, folder: Path, *, num_layers: int, num_steps: int = 300, seed: int = 5) -> Any:
    """Writes target and trained MTP layers to `folder`, and loads the target from there; needs num_layers <= 8."""
    generator = torch.Generator().manual_seed(seed)
    torch.default_generator.manual_seed(seed)
    target.config.num_mtp_layers = num_layers
    mtp = MtpModel(target, num_layers).float()
    ids = texts(target, generator)
    with torch.no_grad():
        seen = target.model(ids).last_hidden_state
        laws = target.lm_head(seen).softmax(-1)
    layers = [p for name, p in mtp.named_parameters() if name.startswith("layers.")]
    optimizer = torch.optim.AdamW(layers, 3e-3)
    for _ in range(num_steps):
        rows = torch.randint(0, NUM_TEXTS, (BATCH,), generator=generator)
        loss, hidden, num = torch.zeros(()), seen[rows, : LENGTH - num_layers], LENGTH - num_layers
        for layer in range(num_layers):
            shifted = slice(layer + 1, layer + 1 + num)
            positions = torch.arange(LENGTH)[None, shifted]
            hidden = mtp.forward_layer(layer, hidden, positions, None, input_ids=ids[rows, shifted])
            logits = target.lm_head(hidden)
            loss = loss + cross_entropy(logits.flatten(0, 1), laws[rows, shifted].flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    target.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_file({**load_file(path), **_checkpoint(mtp, target.config.num_hidden_layers)}, path, metadata={"format": "pt"})
    return LlamaWithMtp.from_pretrained(folder, dtype=torch.float32).eval()


def _checkpoint(mtp: Any, first: int) -> dict[str, torch.Tensor]:
    """The MTP layers' weights under the names that checkpoints give them: as layers `first` and on."""
    found = {}
    for name, values in mtp.state_dict().items():
        if name.startswith("layers."):
            _, index, rest = name.split(".", 2)
            rest = rest.removeprefix("mtp_block.").replace("post_norm.", "shared_head.norm.")
            found[f"model.layers.{first + int(index)}.{rest}"] = values.clone()
    return found


def dflash(target: Any, *, block_size: int, num_steps: int = 300, seed: int = 6) -> Any:
    """A DFlash assistant for `target` that drafts block_size - 1 tokens at a time."""
    generator = torch.Generator().manual_seed(seed)
    torch.default_generator.manual_seed(seed)
    size = target.config.hidden_size
    config = MuseGlimmerAssistantConfig(
        hidden_size=size, intermediate_size=2 * size, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=size // 4, block_size=block_size, mask_token_id=MASK_ID, target_layer_ids=[0, 1],
        layer_types=["full_attention"] * 2, max_position_embeddings=256, bos_token_id=None, eos_token_id=None,
        pad_token_id=0,
    )  # fmt: skip
    assistant = MuseGlimmerAssistantModel(config).float()
    ids = texts(target, generator)
    with torch.no_grad():
        seen = target(ids, output_hidden_states=True)
        context = torch.cat([seen.hidden_states[1], seen.hidden_states[2]], -1)
        laws = seen.logits.softmax(-1)
    optimizer = torch.optim.AdamW(assistant.parameters(), 3e-3)
    masks = torch.full((BATCH, block_size - 1), MASK_ID)
    for _ in range(num_steps):
        rows = torch.randint(0, NUM_TEXTS, (BATCH,), generator=generator)
        anchor = int(torch.randint(3, LENGTH - block_size, (1,), generator=generator))
        block = torch.cat([ids[rows, anchor : anchor + 1], masks], 1)
        output = assistant(
            noise_embeds=target.get_input_embeddings()(block).detach(), context_hidden_states=context[rows, :anchor],
            position_ids=torch.arange(anchor + block_size)[None], attention_mask=None, cache=None,
        ).last_hidden_state[:, 1:]  # fmt: skip
        logits = target.lm_head(output)
        wanted = laws[rows, anchor : anchor + block_size - 1]
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return assistant.eval()
