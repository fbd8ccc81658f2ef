"""Classes: one per example, one per token, or several yes-or-no labels."""

import math
from collections.abc import Iterable
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.checks import NetworkError
from fedpart.extras import need
from fedpart.nn.hyperparameters.base import RARE
from fedpart.nn.likelihoods import base


class Categorical(base.Likelihood):
    """What a class per example and a class per token share.

    ``p(y) = (1 - e) softmax(logits / T)_y + e / K``, in nats ``-log p(y)``. Unless they are asked for, T is 1
    and e is 0.

    Args:
        temperature: initial T > 0, which is then learned (Guo et al. 2017 fit it to validation data).
        label_smoothing: initial e in (0, 1), which is then learned: the probability that a label is drawn at
            random. As weights on targets (Szegedy et al. 2016) the loss would be linear in e, and e go to a
            bound.
    """

    averages = base.AVERAGES
    has_hits = True
    limits: ClassVar = {  # noise of labels from one in a million to 99%
        "log_temperature": (-math.log(1e3), math.log(1e3)),
        "smoothing_logit": (RARE, math.log(99.0)),
    }

    def __init__(self, temperature: float | None = None, label_smoothing: float | None = None) -> None:
        super().__init__()
        self.log_temperature: Tensor | None = None
        self.smoothing_logit: Tensor | None = None
        if temperature is not None:
            self.log_temperature = nn.Parameter(
                torch.tensor(math.log(base.positive("temperature", temperature)))
            )
        if label_smoothing is not None:
            if not base.positive("label_smoothing", label_smoothing) < 1:
                raise ValueError(f"Label smoothing lies strictly between 0 and 1, got {label_smoothing}.")
            self.smoothing_logit = nn.Parameter(
                torch.tensor(math.log(label_smoothing / (1 - label_smoothing)))
            )

    def over_samples(self, outputs: Tensor) -> Tensor:
        if self.log_temperature is not None:
            outputs = outputs * torch.exp(-self.log_temperature)
        return base.average_samples(outputs, self.average)

    def nll(self, outputs: Tensor, targets: Tensor, ignored: int = -100) -> Tensor:
        """``-log p(y)``, ``[N]``, of averaged outputs ``[N, K]`` and classes ``[N]``; 0 where ignored.
        Log-probabilities that are averaged already are not normalised again."""
        if self.average == "logits":
            nll = F.cross_entropy(outputs, targets, reduction="none", ignore_index=ignored)
        else:
            nll = F.nll_loss(outputs, targets, reduction="none", ignore_index=ignored)
        if self.smoothing_logit is None:
            return nll
        mixed = -self._mixed(-nll, outputs.shape[-1], self.smoothing_logit)
        return torch.where(targets == ignored, torch.zeros_like(nll), mixed)

    def log_p(self, outputs: Tensor) -> Tensor:
        """Log-probabilities ``[..., K]`` of all classes, given averaged outputs; they sum to 1."""
        log_p = outputs.log_softmax(-1)
        if self.smoothing_logit is None:
            return log_p
        return self._mixed(log_p, outputs.shape[-1], self.smoothing_logit)

    def _mixed(self, log_p: Tensor, classes: int, logit: Tensor) -> Tensor:
        """``log((1 - e) p + e / K)``, given ``log p`` and the logit of e."""
        drawn = F.logsigmoid(logit) - math.log(classes)
        return torch.logaddexp(F.logsigmoid(-logit) + log_p, drawn.expand(log_p.shape))

    def physical(self) -> dict[str, float]:
        values = {}
        if self.log_temperature is not None:
            values["temperature"] = self.log_temperature.detach().exp().item()
        if self.smoothing_logit is not None:
            values["label_smoothing [%]"] = 100 * torch.sigmoid(self.smoothing_logit.detach()).item()
        return values


@base.LIKELIHOODS.register("classification")
class Classification(Categorical):
    """One class per example: ``outputs [B, K]`` logits, ``targets [B]`` int64; see :class:`Categorical`."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        check_classes("classification", targets)
        if outputs.ndim == 3:
            raise ValueError(
                f"classification takes one prediction per example, but the outputs are "
                f"{list(outputs.shape)}; use likelihood='ensemble' for several networks in one, [B, M, K]"
            )
        return self.nll(outputs, targets)

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(1) == targets

    def answers(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        p = self.log_p(outputs).exp()
        return p.argmax(1), p

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Macro F1, and the expected calibration error over 15 bins (Guo et al. 2017)."""
        metrics = need("torchmetrics.functional.classification", "F1", "measures")
        classes, p = outputs.shape[1], self.log_p(outputs).exp()
        return {
            "f1": metrics.multiclass_f1_score(p, targets, classes, average="macro").item(),
            "calibration_error": metrics.multiclass_calibration_error(p, targets, classes).item(),
        }


def check_classes(name: str, targets: Tensor) -> None:
    """Refuse targets that are not one class per example."""
    if targets.ndim > 1 and targets.shape[-1] > 1:
        raise ValueError(
            f"{name} takes one class per example, but the targets are {list(targets.shape)}; write "
            f"targets.argmax(1) if they are one-hot, else use likelihood='token_classification' or "
            f"'multilabel'"
        )
    if targets.ndim > 1 or targets.is_floating_point():
        kind = f"{'real' if targets.is_floating_point() else 'whole'} numbers {list(targets.shape)}"
        flat = "" if targets.ndim == 1 else ".flatten()"
        remedy = f"write targets{flat}.long() if they are classes, else use likelihood='gaussian'"
        raise ValueError(f"{name} takes integers, one per example, but the targets are {kind}; {remedy}")


@base.LIKELIHOODS.register("multilabel")
class MultiLabel(base.Likelihood):
    """``outputs [B, K]`` logits, ``targets [B, K]`` of 0 and 1: ``-sum_k log sigmoid(+-f_k)`` nats."""

    has_hits = True

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.shape != outputs.shape or outputs.ndim < 2:
            remedy = "use torch.nn.functional.one_hot, or likelihood='classification'"
            if targets.ndim < 2 and outputs.numel() == targets.numel():
                remedy = "give [B, 1] of both: targets[:, None], and a network that ends in Linear(..., 1)"
            fault = f"multilabel takes a 0 or 1 for each of {list(outputs.shape)} outputs [B, K]"
            raise NetworkError(f"{fault}, got targets {list(targets.shape)}; {remedy}.")
        signed = outputs * (2 * targets.to(outputs.dtype) - 1)
        return -F.logsigmoid(signed).sum(1)

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[base.Fault]:
        what = "targets other than 0 and 1, which are all that the likelihood 'multilabel' takes"
        yield (targets != 0) & (targets != 1), what, "write 1 where a label applies and 0 elsewhere"

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs > 0) == (targets > 0.5)).float().mean(1)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Macro F1 over the labels."""
        metrics = need("torchmetrics.functional.classification", "F1", "measures")
        p, labels = outputs.sigmoid(), targets.long()
        if outputs.shape[1] == 1:
            return {"f1": metrics.binary_f1_score(p, labels).item()}
        return {"f1": metrics.multilabel_f1_score(p, labels, outputs.shape[1]).item()}


@base.LIKELIHOODS.register("token_classification")
class TokenClassification(Categorical):
    """``outputs [B, T, K]`` logits, ``targets [B, T]`` int64, of which positions ``ignored`` have no class.

    An example's negative log-likelihood is the mean over its T' positions that have one,
    ``-1/T' sum_t log p(y_t)``, so that long texts weigh as much as short ones. Each example needs such a one.

    Args:
        shift: whether position t predicts the class of position t + 1, as in language models.
        ignored: the class that stands for none; -100 is what Hugging Face's collators write.
        temperature, label_smoothing: see :class:`.Categorical`.
    """

    def __init__(
        self, shift: bool = False, ignored: int = -100, temperature: float | None = None,
        label_smoothing: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(temperature, label_smoothing)
        self.shift, self.ignored = base.flag("shift", shift), base.whole("ignored", ignored)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self._aligned(outputs, targets)
        nll = self.nll(outputs.flatten(0, 1), targets.flatten(), self.ignored).view(targets.shape)
        return nll.sum(1) / (targets != self.ignored).sum(1).clamp(min=1)

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[base.Fault]:
        if targets.ndim != 2:
            return
        labelled = (targets[:, 1:] if self.shift else targets) != self.ignored
        behind = " behind the first" if self.shift else ""
        yield ~labelled.any(1), f"no labelled position{behind}", "leave them out of the data"
        outside = targets < 0 if classes is None else (targets < 0) | (targets >= classes)
        which = "below 0" if classes is None else f"outside the {classes} classes 0..{classes - 1}"
        remedy = f"correct them, or write {self.ignored} where there is no class"
        yield outside & (targets != self.ignored), f"labels {which}", remedy

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self._aligned(outputs, targets)
        known = targets != self.ignored
        return ((outputs.argmax(-1) == targets) & known).sum(1) / known.sum(1).clamp(min=1)

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Perplexity per position, ``exp`` of the mean of ``-log p``."""
        metrics = need("torchmetrics.functional.text", "Perplexity", "measures")
        outputs, targets = self._aligned(outputs, targets)
        perplexity = metrics.perplexity(self.log_p(outputs.float()), targets, ignore_index=self.ignored)
        return {"perplexity": perplexity.item()}

    def _aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.ndim != 3 or targets.shape != outputs.shape[:2]:
            raise ValueError(
                f"token_classification takes outputs [B, T, K] and targets [B, T], got "
                f"{list(outputs.shape)} and {list(targets.shape)}; pad both alike, targets with "
                f"{self.ignored}."
            )
        if self.shift:
            return outputs[:, :-1], targets[:, 1:]
        return outputs, targets
