"""Run by torchrun in two processes: `python -m torch.distributed.run … parallel_worker.py TEXT OUT STEPS METHOD…`.

Every method is trained for so many steps; each process writes the weights that it ends with beside the run. Several
methods share a process group, which gloo opens only once; a single one leaves it to the loop.
"""

import os
import sys
from pathlib import Path

import torch

from draftproof.train import loop
from draftproof.train.settings import TrainSettings
from tests.train.conftest import make_target

SETTINGS = {
    "rows": 2, "row_length": 32, "num_anchors": 6, "block_size": 4, "markov_rank": 4, "num_steps_ahead": 2,
    "position_share": 0.5, "evaluate_every": 2, "learning_rate": 1e-2,
    "checkpoint_seconds": 0.0,
}  # fmt: skip


def settings_of(method: str, num_steps: int) -> TrainSettings:
    return TrainSettings(method=method, num_steps=num_steps, **SETTINGS)


def main() -> None:
    text, out, num_steps, *methods = sys.argv[1:]
    torch.set_num_threads(1)
    save = loop._Run._save

    def run(self: loop._Run) -> dict[str, object]:
        found = train(self)
        torch.save(self.recipe.module.state_dict(), self.out.with_name(f"{self.out.name}.{self.rank}.pt"))
        return found

    def saved(self: loop._Run) -> None:
        assert self.rank == 0
        save(self)

    train, loop._Run.run, loop._Run._save = loop._Run.run, run, saved  # type: ignore[method-assign]
    if len(methods) > 1:
        torch.distributed.init_process_group("gloo")
    if dies_at := int(os.environ.get("DIES_AT", 0)):
        step = loop._Run._train_step

        def dies(self: loop._Run) -> None:
            if self.rank == 0 and self.step == dies_at:
                os._exit(9)
            step(self)

        loop._Run._train_step = dies  # type: ignore[method-assign]
    for method in methods:
        loop.train(make_target(), Path(text), Path(out) / method, settings_of(method, int(num_steps)))


if __name__ == "__main__":
    main()
