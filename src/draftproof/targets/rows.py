"""A forward with a row per request, padded to the widest: for models that a packed forward can't drive.

Eager attention (the only one that some architectures have), and models that compute keys and values from what they
cache, want them [rows, kv_heads, key length, dim] from the cache, and one mask. They are gathered; padding is written
nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftproof.targets.base import ScoreRequest
from draftproof.targets.cache import SlotCache
from draftproof.targets.layers import Layers
from draftproof.targets.masks import RowLayout, additive_mask


class RowsForward:
    """requests: each on its own slot, whose room has been reserved; all read `key_length` keys.

    width: of the rows; their padding is written nowhere.
    """

    def __init__(
        self,
        cache: SlotCache,
        layers: Layers,
        requests: Sequence[ScoreRequest],
        *,
        width: int,
        key_length: int,
    ) -> None:
        self._cache = cache
        device = layers.shapes[0].device
        starts = [cache.lengths[request.slot] for request in requests]
        offsets = [cache.extents.offsets[request.slot] for request in requests]
        self.rows = [
            RowLayout.of(start, len(request.token_ids), request.parents)
            for request, start in zip(requests, starts, strict=True)
        ]
        written = [
            (row, place, offset + start + place)
            for row, (request, start, offset) in enumerate(zip(requests, starts, offsets, strict=True))
            for place in range(len(request.token_ids))
        ]
        self._rows, self._places, self._columns = torch.tensor(written, device=device).unbind(1)
        first = torch.tensor(offsets, device=device)
        # What a short row reads beyond its own columns is masked.
        self._seen = (first[:, None] + torch.arange(key_length, device=device)).clamp(max=cache.capacity - 1)
        self.masks = {
            kind: additive_mask(self.rows, width, key_length, window, 1, layers.shapes[0].dtype, device)
            for kind, window in layers.windows.items()
        }

    def update(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [rows, kv_heads, width, dim]; return all that the rows read, of the same form."""
        group = next(group for group in self._cache.groups if layer in group.layers)
        index, found = group.layers.index(layer), []
        for buffer, states in ((group.keys[index], keys), (group.values[index], values)):
            buffer[:, self._columns] = states[self._rows, :, self._places].transpose(0, 1)
            found.append(buffer[:, self._seen].transpose(0, 1))
        return found[0], found[1]
