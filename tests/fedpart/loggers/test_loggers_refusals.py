"""What is no logger."""

from functools import partial

import refusals
from problems import chain_net, shards

from fedpart import Dataset, Task, federate
from fedpart.loggers import Logger


class Deaf(Logger):
    def start(self, run):
        raise OSError("nobody answers")


def test_what_is_no_logger(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logged = partial(federate, Task(chain_net(), samples=1), shards([8, 8, 8]), rounds=1)
    rows = [
        (["tensorbord"], "Unknown logger 'tensorbord': did you mean 'tensorboard'"),
        ("tensorboard", r"write \['tensorboard'\]"),
        ([{"use": "mlflow", "uri": "x"}], "has the keys use and options"),
        ([3], "'int' is no logger"),
        ([Dataset], "is no logger"),
        ([{"use": "wandb", "options": {"mode": "away"}}], "offline or online, not 'away'"),
        ([{"use": "tensorboard", "options": {"folder": "x"}}], "does not take the options"),
        ([Deaf()], "The logger Deaf cannot start .nobody answers.; mend or leave it out"),
    ]
    refusals.check((says, partial(logged, loggers=loggers), says) for loggers, says in rows)
