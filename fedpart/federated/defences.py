"""Settings of what takes the place of the mean of clients' updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedpart.codecs import CODECS
from fedpart.defences import DEFENCES, Defence
from fedpart.pace.settings import PaceSettings
from fedpart.training.settings import documented, setting
from fedpart.updates.defended import Defended


@documented
@dataclass(frozen=True, kw_only=True)
class DefenceSettings(PaceSettings):
    """What a federated run does so that a few clients cannot move the mean far."""

    defence: str | None = setting(
        None,
        "what takes the place of the mean over the clients that have trained a partition, and of that over "
        "psi's gradients: trim, median, geometric (RFA), krum (multi-Krum), centred (centred clipping with "
        "momentum) or package.module:Class; null: the mean",
    )
    defence_options: Mapping[str, Any] = setting({}, "keyword arguments of the defence, e.g. {share: 0.2}")
    bucket: int = setting(
        1,
        "with a defence, how many clients, drawn anew each round, are averaged before it sees them: 2 where "
        "clients' data differ; fewer hostile ones are borne",
        ge=1,
    )
    trim: float | None = setting(
        None,
        "short for defence: trim with this share, of the clients whose values are left out at each end of "
        "every coordinate; null: none are",
        gt=0,
        lt=0.5,
    )

    @property
    def defended(self) -> str:
        """The key by which there is a defence; empty: there is none."""
        return "trim" if self.trim is not None else "defence" if self.defence is not None else ""

    def defend(self) -> Defended:
        """The defence, as a run begins with it."""
        return Defended(self._defence(), self.bucket, self.seed)

    def _defence(self) -> Defence:
        if self.trim is not None:
            made: Defence = DEFENCES.make("trim", {"share": self.trim})
        else:
            made = DEFENCES.make(str(self.defence), self.defence_options)
        return made

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trim is not None and self.defence is not None:
            raise ValueError(
                f"trim is short for defence: trim, but the defence is {self.defence!r}; leave one of the "
                f"two out."
            )
        if self.defence is None and self.defence_options:
            raise ValueError(
                f"defence_options are {dict(self.defence_options)}, but there is no defence to take them; "
                f"set defence as well."
            )
        if not self.defended and self.bucket != 1:
            raise ValueError(
                f"bucket is {self.bucket}, but there is no defence that would see the buckets; set defence "
                f"as well, or leave bucket out."
            )

    def check_defence(self, upload: str | None, upload_options: Mapping[str, Any]) -> None:
        """Refuse options that the defence does not take, and a codec whose numbers it cannot use.

        Raises:
            ValueError: one sentence.
        """
        by_coordinate = self._defence().by_coordinate
        if upload is not None and by_coordinate and CODECS.make(upload, upload_options).sparse:
            raise ValueError(
                f"A coordinate that most clients leave out of their upload has a median of 0, so nothing "
                f"would be learnt with upload: {upload}; leave it or {self.defended} out, or use defence: "
                f"geometric."
            )

    def deciding(self) -> dict[str, Any]:
        """See :meth:`.Settings.deciding`: without options of what there is none of."""
        found = super().deciding()
        found["bucket"] = None if self.bucket == 1 else self.bucket  # as a run that has not heard of it
        if self.defence is None:
            del found["defence_options"]
        return found
