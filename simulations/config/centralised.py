"""TrainingConfig: everything that decides a centralised run."""

from typing import ClassVar, Literal

from pydantic import model_validator

from fedpart import TrainingSettings
from simulations.config.keys import entry, section_of
from simulations.config.sections import PsiOptimiserSection, SelectSection, WeightOptimiserSection
from simulations.config.shared import Clock, Config

# Values of the key `evidence`, and `own`; what people read. In files an estimate of any kind is called lml.
EVIDENCE_NAMES = {"lml": "L_ML", "laplace": "Laplace evidence", "own": "evidence of the method"}
_Keys = section_of(TrainingSettings, leave_out=("scalars", "final_rate"))


class TrainingConfig(_Keys, Config):
    """Centralised training; defaults are the paper's MNIST settings (App. I.4) with half its samples."""

    clock: ClassVar[Clock] = Clock("iteration", "iterations", "train", "centralised", "centralised training")
    optimiser: WeightOptimiserSection = entry(WeightOptimiserSection(), "of the weights")
    optimiser_psi: PsiOptimiserSection = entry(PsiOptimiserSection(), "of psi, which is Adam")
    evidence: Literal["lml", "laplace"] = entry(
        "lml",
        "what reports and early stopping are judged by: lml (L_ML), or laplace (diagonal Laplace evidence of "
        "the network; needs fedpart[laplace])",
    )
    corrupted: bool = entry(
        False, "whether the test is repeated on images that are corrupted here, five ways at five severities"
    )
    select: SelectSection | None = entry(
        None, "what `fedpart select` varies; `fedpart train` does not look at it", decides="nothing"
    )
    evaluate_every: int = entry(
        100, "iterations between reports: evidence and validation; the end has one too", ge=1
    )
    checkpoint_every: int = entry(1000, "iterations between checkpoints", decides="nothing", ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> "TrainingConfig":
        self.settings()
        return self

    @property
    def may_grow(self) -> bool:
        return self.settings().may_grow(self.build_method().stages(self.iterations, 1, 1))

    @property
    def judged_by(self) -> str:
        """What ``lml`` is in reports and files: a key of :data:`EVIDENCE_NAMES`."""
        return "own" if self.evidence == "lml" and self.build_method().estimates else self.evidence

    def settings(self) -> TrainingSettings:
        return self.settings_as(
            TrainingSettings,
            optimiser=self.optimiser.settings(),
            optimiser_psi=self.optimiser_psi.settings(),
            weight_decay=self.optimiser.weight_decay,
            decay_scaling=self.optimiser.decay_scaling,
            scalars=self.optimiser.scalars,
        )
