"""What a training run is asked for, validated; printed into its log and its model card."""

from __future__ import annotations

from dataclasses import dataclass

from draftproof.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """num_steps, minutes: the run ends at whichever comes first; the learning rate falls with the larger share of
    the two. rows, row_length: packed rows of a batch, on each GPU. num_anchors: blocks of a row (dflash, dspark).
    num_steps_ahead: drafted tokens that a chain drafter is trained on (eagle3, mtp).
    block_size, num_layers, markov_rank: of the drafter; markov_rank is dspark's. tap_ids: hidden states of the target
    as transformers counts them; None for the recipe's own. draft_vocab_size: the most frequent tokens only; None for
    all. position_share: of a chain drafter's positions whose loss is computed.
    save_head: write the reduced output layer too, which other packages' readers need and ours derives.
    loss: of a chain drafter, "cross-entropy" or "distance" (0.1 of that and 1.8 of the laws' distance, as dspark's
    always is). compare_at: temperatures at which the two laws are compared; each position takes one of them.
    last_turn_only: a loss looks at the last turn of each document, not at a user's turn that the target wrote.
    compile: the comparison of logits, the target's layers and a block drafter's go through torch.compile.
    init_from: folder of a drafter whose weights of the same names are the first ones, and whose reduced vocabulary
    (tokens may be added to it) and mask token are kept.
    """

    method: str
    num_steps: int = 2000
    minutes: float | None = None
    rows: int = 16
    row_length: int = 1024
    learning_rate: float = 6e-4
    warmup_share: float = 0.04
    weight_decay: float = 0.0
    max_gradient_norm: float = 1.0
    num_anchors: int = 64
    num_steps_ahead: int = 5
    block_size: int = 8
    num_layers: int = 2
    markov_rank: int = 256
    markov_type: str = "vanilla"
    tap_ids: tuple[int, ...] | None = None
    draft_vocab_size: int | None = None
    position_share: float = 0.25
    save_head: bool = True
    hard_labels: bool = False
    loss: str = "cross-entropy"
    compare_at: tuple[float, ...] = (1.0,)
    last_turn_only: bool = False
    compile: bool = False
    init_from: str | None = None
    checkpoint_seconds: float = 30.0
    evaluate_every: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("dflash", "dspark", "eagle3", "mtp"):
            raise ParameterError("method", self.method, "one of dflash, dspark, eagle3, mtp")
        least = {"block_size": 2, "row_length": 8}
        for name in ("num_steps", "rows", "row_length", "num_anchors", "block_size", "num_layers", "num_steps_ahead",
                     "markov_rank", "evaluate_every"):  # fmt: skip
            low = least.get(name, 1)
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ParameterError(name, value, f"an integer of {low} or more")
        if self.minutes is not None and not self.minutes > 0:
            raise ParameterError("minutes", self.minutes, "above 0")
        if not 0 < self.position_share <= 1:
            raise ParameterError("position_share", self.position_share, "above 0 and at most 1")
        if not self.learning_rate > 0 or not 0 <= self.warmup_share < 1:
            raise ParameterError("learning_rate", self.learning_rate, "above 0, with warmup_share in [0, 1)")
        if self.markov_type not in ("vanilla", "gated", "rnn"):
            raise ParameterError("markov_type", self.markov_type, "one of vanilla, gated, rnn")
        if self.loss not in ("cross-entropy", "distance"):
            raise ParameterError("loss", self.loss, "cross-entropy or distance")
        if not self.compare_at or not all(temperature > 0 for temperature in self.compare_at):
            raise ParameterError("compare_at", self.compare_at, "temperatures above 0, one or more")
