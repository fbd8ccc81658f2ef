"""Several yes-or-no labels per example."""

from collections.abc import Iterable

from torch import Tensor
from torch.nn import functional as F

from fedpart.extras import need
from fedpart.nn.likelihoods.base import LIKELIHOODS, Fault, Likelihood


@LIKELIHOODS.register("multilabel")
class MultiLabel(Likelihood):
    """``outputs [B, K]`` logits, ``targets [B, K]`` of 0 and 1: ``-sum_k log sigmoid(+-f_k)`` nats."""

    has_hits = True

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.shape != outputs.shape:
            raise ValueError(
                f"multilabel takes a 0 or 1 for each of {list(outputs.shape)} outputs, got targets "
                f"{list(targets.shape)}; use torch.nn.functional.one_hot, or likelihood='classification'."
            )
        signed = outputs * (2 * targets.to(outputs.dtype) - 1)
        return -F.logsigmoid(signed).sum(1)

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[Fault]:
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
