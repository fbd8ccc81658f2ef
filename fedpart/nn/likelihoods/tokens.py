"""A class for each position of a sequence; some positions may have none."""

from collections.abc import Iterable

from torch import Tensor

from fedpart.extras import need
from fedpart.nn.likelihoods.base import LIKELIHOODS, Fault, flag, whole
from fedpart.nn.likelihoods.classification import Categorical


@LIKELIHOODS.register("token_classification")
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
        self,
        shift: bool = False,
        ignored: int = -100,
        temperature: float | None = None,
        label_smoothing: float | None = None,
    ) -> None:
        super().__init__(temperature, label_smoothing)
        self.shift, self.ignored = flag("shift", shift), whole("ignored", ignored)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        outputs, targets = self._aligned(outputs, targets)
        nll = self.nll(outputs.flatten(0, 1), targets.flatten(), self.ignored).view(targets.shape)
        return nll.sum(1) / (targets != self.ignored).sum(1).clamp(min=1)

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[Fault]:
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
