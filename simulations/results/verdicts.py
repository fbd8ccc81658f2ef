"""Verdicts: a run beside another one, and beside a guess that looks at no inputs, with their noise."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedpart import Dataset
from fedpart.data import has_labels
from fedpart.data.trained_on import class_counts
from simulations.results.scores import BYTES, SCORES, counted, first_of, told


def guesses(shards: Sequence[Dataset], test: Dataset, answers: Tensor | None = None) -> dict[str, float]:
    """Scores on test data of a guess: the commonest class of the training data, or their mean target; with
    ``answers`` of a run the ``noise`` of the difference of both ``rmse``: two standard errors, by the
    differences of squared errors on ten examples or more."""
    whole = [test, *shards] if len(test) else []
    if whole and all(map(has_labels, whole)):
        counts = class_counts([shard.targets for shard in shards])
        return {"accuracy": (test.targets == counts.index(max(counts))).double().mean().item()}
    targets = [data.targets for data in whole]
    if not targets or not all(isinstance(each, Tensor) and each.is_floating_point() for each in targets):
        return {}
    mean = sum(shard.targets.double().sum(0) for shard in shards) / sum(map(len, shards))
    others = [mean] if answers is None or len(test) < 10 else [mean, answers.reshape(test.targets.shape)]
    errors = [(test.targets.double() - other).square() for other in others]
    roots = [each.mean().sqrt().item() for each in errors]
    if len(roots) == 1 or not sum(roots):
        return {"rmse": roots[0]}
    error = (errors[0] - errors[1]).reshape(len(test), -1).mean(1).std().item() / math.sqrt(len(test))
    return {"rmse": roots[0], "noise": 2 * error / sum(roots)}


def verdict(mine: float, other: float, examples: int) -> str:
    """Of accuracies: ``level with`` within two standard errors of the difference, by the number of examples
    alone, taken as independent: this errs on the wide side where they are the same. To each a right and a
    wrong answer are added (Agresti and Caffo 2000): few examples, or none wrong, are not without noise.
    """
    left, right = ((share * examples + 1) / (examples + 2) for share in (mine, other))
    off = 2 * math.sqrt((left * (1 - left) + right * (1 - right)) / (examples + 2))
    off = min(1.0, off * (examples + 2) / examples)  # of the accuracies as they are told
    word = _word(mine, other, off)
    noise = f"noise of {counted(examples, 'example')}: +-{SCORES['accuracy'].text(off)}"
    return f"this run is {word} it ({noise})"


def _word(better: float, worse: float, noise: float) -> str:
    return "level with" if abs(better - worse) <= noise else "ahead of" if better > worse else "behind"


def beside(summary: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What a run beside did on the same clients and cohorts: its score, the verdict, and what it sent."""
    texts = [f"{score} on the same test data"] if (score := told(other, "test_")) else []
    both, examples = {first_of(run, "test_") for run in (summary, other)}, summary.get("test_examples")
    if both == {"test_accuracy"} and examples:
        texts.append(verdict(summary["test_accuracy"], other["test_accuracy"], examples))
    ratio = other["upload_bytes"] / summary["upload_bytes"]
    texts.append(f"{BYTES.text(other['upload_bytes'])} sent, {ratio:.2f} times as much")
    same = "clients" if "rates" in summary else "clients and cohorts"  # candidates for rates take turns
    return f"{other['method']}, the same {same}: {'; '.join(texts)}"


def guessed(summary: Mapping[str, Any]) -> str:
    """What a guess scores on the test data, and the verdict; empty where there is none."""
    guess, accuracy, rmse = (summary.get(key) for key in ("guess", "test_accuracy", "test_rmse"))
    if guess and "accuracy" in guess and accuracy is not None:
        score = SCORES["accuracy"].text(guess["accuracy"])
        said = verdict(accuracy, guess["accuracy"], summary["test_examples"])
        return f"{score} by the commonest class of the training data; {said}"
    known = guess and "rmse" in guess and rmse is not None
    if not (guess and known):
        return ""
    said, noise = f"rmse {guess['rmse']:.4g} by the mean; this run has {rmse:.4g}", guess.get("noise")
    if noise is None:
        few = ", too few examples to say whether that is noise"
        return said + few * (summary["test_examples"] < 10)  # older runs have kept no noise
    how = f"noise of {counted(summary['test_examples'], 'example')}: +-{noise:.3g}"
    return f"{said} and is {_word(guess['rmse'], rmse, noise)} it ({how})"
