"""The loss that the recipes of eagle3 and mtp share."""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from draftproof.drafters.learned.eagle3 import ChainModel
from draftproof.train.chains import step_weights, unroll
from draftproof.train.losses import accepted_lengths, choose_temperatures, chosen_weights, compare
from draftproof.train.settings import TrainSettings
from draftproof.train.target import FrozenTarget, Packed


def chain_loss(
    model: ChainModel,
    target: FrozenTarget,
    head: torch.Tensor,
    vocab: torch.Tensor | None,
    settings: TrainSettings,
    decay: float,
    batch: Packed,
    generator: torch.Generator,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The settings' loss, `decay` to the power of the step. head [D, hidden]: the output layer's weight."""
    found = unroll(model, target, batch, settings.num_steps_ahead, settings.position_share, generator, torch.float32)
    logits = linear(found.outputs.to(head.dtype), head)
    weights = chosen_weights(settings.loss, settings.hard_labels)
    temperatures = choose_temperatures(settings.compare_at, found.token_ids, generator)
    compared = compare(
        logits,
        found.target_logits,
        found.token_ids,
        weights,
        vocab,
        temperatures=temperatures,
        fused=settings.compile,
    )
    share = step_weights(settings.num_steps_ahead, decay, logits) * found.valid
    return (compared.loss * share).sum() / share.sum().clamp(min=1e-6), {
        "acceptance_length": accepted_lengths(compared.overlap, found.valid),
        "greedy_length": accepted_lengths(compared.agrees, found.valid),
    }
