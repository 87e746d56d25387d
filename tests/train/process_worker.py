"""Run by torchrun: `python -m torch.distributed.run … process_worker.py TEXT OUT`: a few steps of a small drafter."""

import sys
from pathlib import Path

import torch

from draftproof.train import loop
from draftproof.train.settings import TrainSettings
from tests.train.conftest import make_target

SETTINGS = TrainSettings(method="dspark", num_steps=4, rows=2, row_length=48, num_anchors=6, block_size=4,
                         markov_rank=8, learning_rate=4e-3, evaluate_every=2)  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    loop.train(make_target(), Path(sys.argv[1]), Path(sys.argv[2]), SETTINGS)
