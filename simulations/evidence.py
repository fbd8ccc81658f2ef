"""Evidence: the estimate of the log marginal likelihood that centralised training is judged by."""

from __future__ import annotations

from fedpart import Training, TrainingSettings

# Values of the key `evidence`, and what people read. In files an estimate of either kind is called lml.
NAMES = {"lml": "L_ML", "laplace": "Laplace evidence"}
_PROBE = TrainingSettings(method="none", method_options={"augment": True}, weight_decay=1.0)
_EXAMPLES = 4


def check_laplace(training: Training) -> None:
    """Refuse, before anything is run, what has no Laplace evidence: tried on the initial network.

    Raises:
        ImportError: laplace-torch is not installed.
        ValueError: the inputs are transformed at random, or it is no classification.
    """
    from fedpart.laplace import laplace_evidence

    data = training.examples(1, len(training.shares))
    laplace_evidence(Training(training.task, data.subset(range(min(_EXAMPLES, len(data)))), _PROBE))
