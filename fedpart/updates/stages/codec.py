"""Upload codec: clients send their changes of weights in fewer bits, and the server reads what these say."""

from typing import Any

from fedpart.randomness.streams import generator
from fedpart.training.settings import require
from fedpart.updates.round import Round
from fedpart.updates.stages.base import Run, Stage
from fedpart.updates.update import Update


class UploadCodec(Stage):
    """Replaces changes by the numbers that the server will read, which is a function of client and round.

    Attributes:
        codec: of the settings.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.codec = run.settings.codec()

    @classmethod
    def wanted(cls, settings: Any) -> bool:
        return settings.upload is not None

    @classmethod
    def check(cls, settings: Any) -> None:
        if settings.upload is not None:
            settings.codec()  # refuses
            return
        require(
            not settings.upload_options,
            f"upload_options are {dict(settings.upload_options)}, but there is no upload codec to take them; "
            f"set upload as well.",
        )
        require(
            not settings.error_feedback,
            "error_feedback keeps what an upload codec loses, but there is none; set upload as well, or "
            "leave error_feedback out.",
        )

    def send(self, update: Update, client: int, round: Round) -> None:
        for j, delta in update.deltas.items():
            rng = generator(self.run.settings.seed, "upload", client, round.number, j)
            update.encoded[j] = data = self.codec.encode(delta, rng)
            update.deltas[j] = self.codec.decode(data, len(delta), delta.dtype)
            if round.residuals is not None:
                update.lost[j] = (delta - update.deltas[j]).cpu()
