"""The training loop: batches, steps, a log, checkpoints; the same for every recipe.

Learning rate: up over `warmup_share`, then down along a half cosine to a tenth, over the larger of the two shares
(steps done, minutes gone), so a run that its time ends is a finished one.
Several GPUs: started by torchrun, gradients are averaged by DistributedDataParallel and every process takes batches of
its own; process 0 writes. bfloat16 arithmetic on a GPU (autocast), weights and optimizer in float32.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from draftproof.errors import ModelError
from draftproof.train.compiled import compile_layers
from draftproof.train.corpus import Corpus
from draftproof.train.initial import take_over
from draftproof.train.packing import Packing
from draftproof.train.plot import write_plot
from draftproof.train.processes import rank_and_world
from draftproof.train.recipes import RECIPES, Recipe
from draftproof.train.settings import TrainSettings
from draftproof.train.state import read_state, write_drafter, write_state
from draftproof.train.target import FrozenTarget, Packed

LOG_NAME: Final = "log.jsonl"
_LOG_EVERY: Final = 10
_LAST_RATE: Final = 0.1
_NUM_EVALUATED: Final = 2
Report = Callable[[dict[str, Any]], None]


class _Objective(nn.Module):
    """The loss as a forward, so that DistributedDataParallel can wrap it."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.module, self._recipe = recipe.module, (recipe,)

    def forward(self, batch: Packed, generator: torch.Generator) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return self._recipe[0].loss(batch, generator)


def train(
    target: FrozenTarget, data: Path, out: Path, settings: TrainSettings, *, report: Report = lambda record: None
) -> dict[str, Any]:
    """Train a drafter for `target` on the text in `data` into the folder `out`, or go on with the run that is there.

    report: called with every record of the log. Returns the last record. After any checkpoint, `out` holds a drafter
    that `SpeculativeConfig(model=out)` loads, and `out/training` the state, the log and a plot.
    Raises ParameterError, and ModelError where the loss is no number.
    """
    rank, world = rank_and_world()
    with _process_group(world, target.device):
        return _Run(target, data, out, settings, report, rank, world).run()


@contextmanager
def _process_group(world: int, device: torch.device) -> Iterator[None]:
    # A caller's own group is used, and left to it.
    if world == 1 or torch.distributed.is_initialized():
        yield
        return
    torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


class _Run:
    def __init__(
        self,
        target: FrozenTarget,
        data: Path,
        out: Path,
        settings: TrainSettings,
        report: Report,
        rank: int,
        world: int,
    ) -> None:
        self.target, self.out, self.settings, self.report = target, out, settings, report
        self.rank, self.world = rank, world
        corpus = Corpus(data, target.vocab_size)
        sizes: dict[str, Any] = {
            "row_length": settings.row_length,
            "num_rows": settings.rows,
            "seed": settings.seed,
            "last_turn_only": settings.last_turn_only,
        }
        self.batches, self.held_out = Packing(corpus, **sizes), Packing(corpus, **sizes, held_out=True)
        self.recipe = RECIPES[settings.method](target, corpus, settings, self._generator(-1))
        if settings.init_from is not None:
            take_over(self.recipe.tensors(), settings.init_from)
        if settings.compile:
            compile_layers(target.model.get_decoder().layers)
            self.recipe.compile()
        self.corpus = corpus
        self.objective: nn.Module = _Objective(self.recipe)
        trained = [parameter for parameter in self.recipe.module.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained,
            lr=settings.learning_rate,
            weight_decay=settings.weight_decay,
            betas=(0.9, 0.95),
            fused=target.device.type == "cuda",
        )
        self.trained = trained
        self.step, self.seconds_before = read_state(out, self.recipe.module, self.optimizer, settings)
        if world > 1:
            self.objective = nn.parallel.DistributedDataParallel(self.objective)
        self.began = self.saved = time.monotonic()
        self.records: list[dict[str, Any]] = self._read_log()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.began

    @property
    def share_done(self) -> float:
        of_time = self.seconds / (60 * self.settings.minutes) if self.settings.minutes else 0.0
        return max(self.step / self.settings.num_steps, of_time)

    def run(self) -> dict[str, Any]:
        self._start_log()
        while not self._agree(self.share_done >= 1.0):
            self._train_step()
            if self.step % self.settings.evaluate_every == 0:
                self._evaluate()
            if self.rank == 0 and time.monotonic() - self.saved >= self.settings.checkpoint_seconds:
                self._save()
        self._evaluate()
        if self.rank == 0:
            self._save()
        return self.records[-1]

    def _agree(self, over: bool) -> bool:
        """Clocks differ between processes: process 0 decides for all."""
        if self.world == 1:
            return over
        flag = torch.tensor(int(over), device=self.target.device)
        torch.distributed.broadcast(flag, 0)
        return bool(flag.item())

    def _generator(self, step: int) -> torch.Generator:
        seed = (self.settings.seed * 1_000_003 + step + 1) * 64 + (self.rank if step >= 0 else 0)
        return torch.Generator(self.target.device).manual_seed(seed)

    def _autocast(self) -> Any:
        return torch.autocast(self.target.device.type, torch.bfloat16, enabled=self.target.device.type == "cuda")

    def _train_step(self) -> None:
        batch = self.batches.batch(self.step * self.world + self.rank).to(self.target.device)
        rate = self.settings.learning_rate * _schedule(self.share_done, self.settings.warmup_share)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with self._autocast():
            loss, figures = self.objective(batch, self._generator(self.step))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.trained, self.settings.max_gradient_norm)
        self.optimizer.step()
        self.step += 1
        if self.step % _LOG_EVERY == 0 or self.step == 1:
            values = {"loss": loss, "gradient_norm": norm, **figures}
            self._log("train", {key: float(value.detach()) for key, value in values.items()} | {"learning_rate": rate})
            if not math.isfinite(self.records[-1]["loss"]):
                raise ModelError(
                    f"the loss is {self.records[-1]['loss']} at step {self.step}; the last checkpoint in {self.out} is "
                    "from before: begin anew with a lower --learning-rate"
                )

    @torch.no_grad()
    def _evaluate(self) -> None:
        """On text that is never trained on, the same blocks every time."""
        totals: dict[str, float] = {}
        for index in range(_NUM_EVALUATED):
            batch = self.held_out.batch(index).to(self.target.device)
            with self._autocast():
                loss, figures = self.recipe.loss(batch, self._generator(-2 - index))
            for name, value in {"loss": loss, **figures}.items():
                totals[name] = totals.get(name, 0.0) + float(value) / _NUM_EVALUATED
        self.recipe.calibrate()
        self._log("evaluation", totals)

    def _save(self) -> None:
        write_state(self.out, self.recipe.module, self.optimizer, self.settings, self.step, self.seconds)
        write_drafter(self.out, self.recipe.config(), self.recipe.tensors())
        curves = [record for record in self.records if record["kind"] == "evaluation"] or self.records
        write_plot(self.out / "training" / "curves.svg", curves, f"{self.settings.method}, held-out text")
        self.saved = time.monotonic()

    def _read_log(self) -> list[dict[str, Any]]:
        path = self.out / "training" / LOG_NAME
        if not path.is_file() or self.step == 0:
            return []
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        # A killed run logged steps after its last checkpoint; they are made again.
        return [record for record in records if record["step"] <= self.step]

    def _start_log(self) -> None:
        if self.rank != 0:
            return
        path = self.out / "training" / LOG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(record) + "\n" for record in self.records), encoding="utf-8")
        count = sum(parameter.numel() for parameter in self.trained)
        facts = {
            "num_parameters": count,
            "num_documents": len(self.corpus),
            "num_tokens": self.corpus.num_tokens,
            "target": self.target.name,
            "settings": asdict(self.settings),
        }
        self._log("start", facts)

    def _log(self, kind: str, values: dict[str, Any]) -> None:
        record = {"kind": kind, "step": self.step, "seconds": round(self.seconds, 2), **values}
        self.records.append(record)
        if self.rank == 0:
            with (self.out / "training" / LOG_NAME).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
            self.report(record)


def _schedule(share_done: float, warmup_share: float) -> float:
    """The factor of the learning rate: a ramp, then a half cosine down to a tenth."""
    share = min(share_done, 1.0)
    if share < warmup_share:
        return max(share / warmup_share, 1e-3)
    rest = (share - warmup_share) / (1.0 - warmup_share)
    return _LAST_RATE + (1.0 - _LAST_RATE) * 0.5 * (1.0 + math.cos(math.pi * rest))
