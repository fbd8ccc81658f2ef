"""Stages: safeguards and savings, a file each, in the order in which a client's update meets them."""

from typing import Any, TypeVar

from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.stages.clip import Clip as Clip
from fedpart.updates.stages.clip import UsualBounds as UsualBounds
from fedpart.updates.stages.clip import UsualNorms as UsualNorms
from fedpart.updates.stages.coding import Download as Download
from fedpart.updates.stages.coding import Feedback as Feedback
from fedpart.updates.stages.coding import UploadCodec as UploadCodec
from fedpart.updates.stages.combining import Combining as Combining
from fedpart.updates.stages.kept import Kept as Kept
from fedpart.updates.stages.personal import Personal as Personal
from fedpart.updates.stages.privacy import Privacy as Privacy
from fedpart.updates.stages.robust import RobustSum as RobustSum

STAGES: tuple[type[Stage], ...] = (
    Download, Kept, Personal, Feedback, UsualNorms, UsualBounds, Clip, UploadCodec, Combining, Privacy,
    RobustSum,
)  # fmt: skip
Kind = TypeVar("Kind", bound=Stage)


def stages_of(run: Run) -> list[Stage]:
    """Those of a run, as it begins with them."""
    return [stage(run) for stage in STAGES if stage.wanted(run.settings)]


def stage_of(stages: list[Stage], kind: type[Kind]) -> Kind | None:
    """The one of this kind; None: the run has none."""
    return next((stage for stage in stages if isinstance(stage, kind)), None)


def doing(stages: list[Stage], what: str) -> list[Any]:
    """What those of the stages do at ``what``, a method of :class:`.Stage`, that do anything there."""
    return [
        getattr(stage, what) for stage in stages if getattr(type(stage), what) is not getattr(Stage, what)
    ]


def check_stages(settings: Any) -> None:
    """Refuse settings of safeguards that make no sense together."""
    for stage in STAGES:
        stage.check(settings)
