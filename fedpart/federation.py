"""Federation: the state of a run on the server, and one round of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedpart.data.dataset import Dataset, check_labels
from fedpart.noise import Noise, NoiseKey
from fedpart.optim import SlicedAdam
from fedpart.protocol import Protocol
from fedpart.update import Update


@dataclass
class RoundReport:
    """What is known of a finished round; bytes are summed over the cohort.

    Attributes:
        round: 1..; seconds: wall-clock of the round; a runner that evaluates adds that.
        train_loss: mean over the cohort's examples, nats, through each client's largest subnetwork.
        cohort: client numbers.
        psi: raw values by name; physical: in units that a person reads.
        skipped: clients without an update, with the reason.
        val_accuracy: fraction, on evaluation rounds of a classification; val_nll: nats per example.
    """

    round: int
    seconds: float
    train_loss: float | None
    cohort: list[int]
    upload_bytes: int
    download_bytes: int
    psi: dict[str, list[float]]
    physical: dict[str, float]
    skipped: list[dict[str, Any]] = field(default_factory=list)
    val_accuracy: float | None = None
    val_nll: float | None = None


class Federation:
    """w, psi and the server's optimisers.

    Args:
        protocol: the policies.

    Attributes:
        round: completed rounds.
        w: ``[size]`` in partition order; psi: ``[P]``.
        server, server_psi: Adam with one state per partition, and one for psi.
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        partition, settings = protocol.partition, protocol.settings
        self.round = 0
        self.w = partition.to_partition_order(partition.space.initial()).to(settings.device)
        self.psi = protocol.task.psi_space.initial().to(settings.device)
        slices = [partition.slice(k) for k in range(1, partition.chunks + 1)]
        self.server = SlicedAdam(self.w, slices, settings.server)
        self.server_psi = SlicedAdam(self.psi, [slice(0, len(self.psi))], settings.server_psi)

    def step(self, total: Update | None) -> None:
        """Finish a round with the cohort's weighted sum; None (nobody answered) changes nothing else."""
        if total is not None:
            self.protocol.method.combine(self, total)
        self.round += 1

    def subnetwork(self, k: int | None = None) -> Tensor:
        """w_s^(k) in the module's own order; the full network if ``k`` is not given."""
        return self.protocol.partition.subnetwork(self.w, self.protocol.partition.chunks if k is None else k)

    def tensors(self) -> dict[str, Tensor]:
        """Named tensors of the full network, norms folded."""
        return self.protocol.partition.space.tensors(self.subnetwork())

    def psi_tensors(self) -> dict[str, Tensor]:
        """psi by name."""
        values = self.protocol.task.psi_space.tensors(self.psi).values()
        return dict(zip(self.protocol.task.psi_names, values, strict=True))

    def report(self, seconds: float, cohort: list[int], total: Update | None, upload: int, download: int,
               skipped: list[dict[str, Any]] | None = None) -> RoundReport:  # fmt: skip
        """The report of the round that :meth:`step` has just finished."""
        return RoundReport(
            round=self.round,
            seconds=seconds,
            train_loss=None if total is None else total.loss / total.examples,
            cohort=cohort,
            upload_bytes=upload,
            download_bytes=download,
            psi={name: value.flatten().tolist() for name, value in self.psi_tensors().items()},
            physical=self.protocol.task.physical(self.psi),
            skipped=skipped or [],
        )

    def predict(self, inputs: Tensor) -> Iterator[Tensor]:
        """Outputs ``[b, ...]`` of the full network by batches, S samples averaged, dropout off (App. J.2)."""
        named = self.tensors()
        with torch.no_grad():
            for index, x in enumerate(torch.split(inputs, self._evaluation_batch)):
                key = NoiseKey(self.protocol.settings.seed, "evaluation", (index, self.round))
                noise = Noise(key, self.w.device, self.protocol.task.dtype)
                yield self.protocol.task.outputs(named, self.psi, x.to(self.w.device), noise, dropout=False)

    def evaluate(self, dataset: Dataset) -> dict[str, float]:
        """Mean negative log-likelihood (``nll``, nats per example), and ``accuracy`` of a classification.

        Raises:
            ValueError: the data set is empty, or a label lies outside the classes.
        """
        if len(dataset) == 0:
            raise ValueError(
                "There are no examples to evaluate on; give at least one, or no validation data."
            )
        task, nll, correct = self.protocol.task, 0.0, 0
        classes = task.likelihood_name == "classification"
        targets = torch.split(dataset.targets, self._evaluation_batch)
        for index, (out, y) in enumerate(zip(self.predict(dataset.inputs), targets, strict=True)):
            if classes and index == 0:
                check_labels(dataset, out.shape[1], "evaluation")
            y = y.to(out.device)
            nll += task.likelihood(out, y).sum().item()
            correct += int((out.argmax(1) == y).sum()) if classes else 0
        scores = {"nll": nll / len(dataset)}
        return {**scores, "accuracy": correct / len(dataset)} if classes else scores

    @property
    def _evaluation_batch(self) -> int:
        """Examples per batch: on a CPU, activations of about 256 rows stay in its cache."""
        rows = 256 if self.w.device.type == "cpu" else 8192
        return max(1, rows // self.protocol.task.samples)

    def save(self, path: str | Path) -> None:
        """Write what decides the next round, atomically: a reader sees the old file or the new one."""
        path = Path(path)
        state = {
            "round": self.round,
            "w": self.w,
            "psi": self.psi,
            "server": self.server.state_dict(),
            "server_psi": self.server_psi.state_dict(),
            "agreement": json.dumps(self.protocol.agreement),
        }
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)

    def load(self, path: str | Path) -> None:
        """Continue from a checkpoint of :meth:`save`.

        Raises:
            ValueError: the file cannot be read, or belongs to another configuration; the difference is named.
        """
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            difference = self.protocol.difference(json.loads(state["agreement"]))
        except Exception as error:  # a torn or foreign file raises anything
            raise ValueError(
                f"The checkpoint {path} cannot be read ({error}); start the run anew."
            ) from error
        if difference:
            raise ValueError(
                f"The checkpoint {path} belongs to another configuration: {difference}. Resume with the "
                f"configuration it has, or start the run anew."
            )
        self.round = state["round"]
        self.w.copy_(state["w"])
        self.psi.copy_(state["psi"])
        self.server.load_state_dict(state["server"])
        self.server_psi.load_state_dict(state["server_psi"])
