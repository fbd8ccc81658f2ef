"""Jobs: what a client is asked to compute, and the gradients of one on a batch: Eq. 3 (w) and Eq. 4 (psi)."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fedpart.checks import Misfit, NetworkError, require
from fedpart.partition.sharing import Penalised
from fedpart.partition.space import ParameterSpace
from fedpart.randomness.noise import Noise
from fedpart.task.task import Batch, Task


@dataclass(frozen=True)
class Job:
    """Train one partition through a subnetwork, take a psi gradient through one, or both at once.

    Attributes:
        subnetwork: k; data is scored by w_s^(k).
        partition: j, whose w_j is trained on the local shard from the server's values (Eq. 25); None: no
            training.
        psi: whether the gradient with respect to psi is taken. Without training it is the gradient at the
            server's values over the shard (Eq. 26); with it, the mean along the training steps. In its place
            comes ``Method.feedback`` where the method holds examples out.
    """

    subnetwork: int
    partition: int | None = None
    psi: bool = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Job":
        """Inverse of ``dataclasses.asdict``."""
        try:
            job = cls(**data)
        except TypeError as error:
            raise ValueError(f"This is not a job: {data!r} ({error}).") from error
        whole = type(job.subnetwork) is int and (job.partition is None or type(job.partition) is int)
        require(whole and type(job.psi) is bool, f"This is not a job: {data!r}.")
        return job


def reported(jobs: Iterable[Job]) -> Job:
    """The job whose loss a client reports: of the largest subnetwork that is trained, or else of any."""
    return max(jobs, key=lambda job: (job.partition is not None, job.subnetwork))


@dataclass(frozen=True)
class Step:
    """One optimiser step of centralised training: a job on a batch from chunks ``first..last``.

    Attributes:
        job: what is computed; its results step w_j and psi.
        first, last: chunks 1..C.
        learning_rate: of the parameters in this step; None: the settings', under their schedule.
    """

    job: Job
    first: int
    last: int
    learning_rate: float | None = None


class Point:
    """Weights ``theta [size]`` of a subnetwork at which gradients are taken. The network reads copies of the
    named ``tensors`` and not views into the flat vector: BLAS gives other bits for memory at odd offsets."""

    def __init__(self, space: ParameterSpace, theta: Tensor) -> None:
        self._space, self.theta = space, theta.detach()
        views = space.tensors(self.theta)
        self.tensors = {name: view.clone().requires_grad_() for name, view in views.items()}

    def pull_back(self, gradients: Sequence[Tensor]) -> Tensor:
        """``[size]`` in the module's own order, from gradients with respect to ``tensors``."""
        return self._space.pull_back(self.theta, gradients)


def kept_casts(device: torch.device) -> AbstractContextManager[object]:
    """While it lasts, a :class:`Point` is brought to 16 bits once, for all losses at it: autocast keeps what
    it has cast until the outermost one ends."""
    return torch.autocast(device.type, enabled=False)


class Objective(Protocol):
    """What a job minimises; ``Method.loss``."""

    def __call__(
        self, task: Task, job: Job, w: Mapping[str, Tensor], psi: Tensor, batch: Batch, noise: Noise | None
    ) -> Tensor: ...


class Gradients(NamedTuple):
    """Result of :func:`gradients`: the loss in nats, a scalar on the device, and gradients ``[size]``, in the
    module's own order, and ``[P]``, as far as the job asks for them."""

    loss: Tensor
    theta: Tensor | None
    psi: Tensor | None


def gradients(
    task: Task, objective: Objective, job: Job, point: Point, psi: Tensor, batch: Batch, noise: Noise | None
) -> Gradients:
    """Loss of ``job`` on one batch at the point of its subnetwork and ``psi [P]``, and its gradient with
    respect to these, as the job asks."""
    psi = psi.detach().requires_grad_(job.psi)
    trains = job.partition is not None
    w = point.tensors if trains else {name: t.detach() for name, t in point.tensors.items()}
    try:
        loss = objective(task, job, w, psi, batch, noise)
    except IndexError as error:
        raise Misfit(error) from error
    minimised = loss + penalty(task.module, w) if trains else loss
    if not loss.requires_grad:
        check_gradients_on()
        what = "any weight; a detach() or torch.no_grad() in forward() or in the loss cuts it off"
        if not trains:
            what = f"any of {', '.join(task.psi_names)}; use them in forward(), or remove them"
        raise NetworkError(f"the loss does not depend on {what}")
    wanted = [tensor for tensor in (*w.values(), psi) if tensor.requires_grad]
    derivatives = list(torch.autograd.grad(minimised, wanted, allow_unused=True, materialize_grads=True))
    of_psi = derivatives.pop() if job.psi else None
    return Gradients(loss.detach(), point.pull_back(derivatives) if trains else None, of_psi)


def check_gradients_on() -> None:
    """Refuse to train where the caller has switched gradients off."""
    if torch.is_inference_mode_enabled() or not torch.is_grad_enabled():
        fault = "Gradients are switched off around this call, by torch.no_grad(), torch.inference_mode() or"
        raise ValueError(f"{fault} torch.set_grad_enabled(False); train outside of it.")


def penalty(module: nn.Module, w: Mapping[str, Tensor]) -> Tensor | float:
    """What parts of ``module`` add to the loss that ``w``, named tensors, is trained with."""
    if module not in _PENALISED:
        penalised = ((p, part) for p, part in module.named_modules() if isinstance(part, Penalised))
        _PENALISED[module] = [(f"{path}.values", part) for path, part in penalised]
    penalties = (part.penalty(w[name]) for name, part in _PENALISED[module] if name in w)
    return sum(penalties, 0.0)


_PENALISED: WeakKeyDictionary[nn.Module, list[tuple[str, Penalised]]] = WeakKeyDictionary()


def psi_mask(task: Task, trained: Sequence[str]) -> Tensor:
    """1 for the numbers of psi whose names are in ``trained``, 0 for the frozen ones; ``[P]``."""
    unknown = sorted({*(trained := [*trained])} - {*task.psi_names})
    require(not unknown, f"trained_psi() returns {unknown}, and not a list of some of {task.psi_names}.")
    named = zip(task.psi_names, task.psi_space.entries, strict=True)
    mask = [torch.full((entry.size,), float(name in trained)) for name, entry in named]
    return torch.cat([torch.zeros(0), *mask]).to(task.dtype)
