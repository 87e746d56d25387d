"""What a checkpoint's numbers mean: the record that a packaging is turned into, which is printed when it is loaded.

The same tensors are used with different conventions, and a wrong one raises no error: only acceptance drops. So each
convention is a field here, `packaging.py` fills them, and what a packaging leaves open is settled by `probe.py`.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

OTHER_TARGET: Final = (
    "the drafter was made for another target: load it with that one, or train one for this target (draftproof train)"
)
_ALWAYS: Final = frozenset({"anchor_first", "causal"})
"""Fields whose False says something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all learned drafters have.

    method: dflash, dspark, mtp or eagle3. packaging: whose files these are.
    tap_ids: hidden states of the target that it reads, as transformers counts them (0: embedding, k: output of layer
    k - 1, the number of layers: after the final norm). tap_convention: how the checkpoint counts them.
    draft_vocab_size: of a reduced vocabulary with a map to the target's, else None. has_own_head: the output layer is
    in the checkpoint, not the target's.
    """

    method: str
    packaging: str
    tap_ids: tuple[int, ...]
    tap_convention: str
    draft_vocab_size: int | None = None
    has_own_head: bool = False

    def describe(self) -> str:
        """One line: every field that says something."""
        said = {
            name: value
            for name, value in asdict(self).items()
            if name in _ALWAYS or value is True or value not in (None, False, (), 0, "", 1.0)
        }
        return ", ".join(f"{name}={_shown(value)}" for name, value in said.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout(Layout):
    """DFlash and DSpark.

    block_size: slots of a block, the anchor's included. anchor_first: slot k predicts the token after slot k's
    position, so a block gives block_size drafts; otherwise slot k predicts its own position's token, slot 0 nothing.
    mask_token_id: what stands in the other slots. causal: for each layer, does a slot see only earlier ones?
    """

    block_size: int
    anchor_first: bool
    mask_token_id: int
    causal: tuple[bool, ...]
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    embedding_scale: float = 1.0
    markov_rank: int = 0
    markov_type: str = ""
    has_confidence: bool = False
    confidence_with_markov: bool = False
    confidence_temperatures: tuple[float, ...] = ()
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    domino_state_size: int = 0
    domino_rank: int = 0
    domino_prefix: int = 0

    @property
    def num_drafts(self) -> int:
        """The most tokens that one block proposes."""
        return self.block_size if self.anchor_first else self.block_size - 1

    @property
    def first_slot(self) -> int:
        """The slot that predicts the first drafted token."""
        return 0 if self.anchor_first else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLayout(Layout):
    """EAGLE-3 and MTP: one layer (or a few) that runs once per drafted token and reads its own hidden state.

    norm_before_residual, norm_before_fc, norm_each_tap, recycles_normed: EAGLE-3's variants. concat: the order of
    [embedding, hidden] in MTP's projection. num_layers: MTP's step j uses layer j mod num_layers.
    """

    num_layers: int = 1
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    norm_each_tap: bool = False
    recycles_normed: bool = False
    concat: str = ""


def tell(line: str) -> None:
    """Print a line about how a checkpoint is read; on stderr, so that no output is mixed with it."""
    print(line, file=sys.stderr)


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        parts = [_shown(part) for part in value]
        return parts[0] if len(set(parts)) == 1 and isinstance(value[0], bool) else f"({','.join(parts)})"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
