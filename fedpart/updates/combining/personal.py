"""Ways in which clients have weights of their own: FedBN, FedRep, Ditto."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatch

from fedpart.checks import check_texts, check_whole, is_number, require
from fedpart.partition.inspection import stacked_parameters
from fedpart.registry import nearest
from fedpart.task.task import Task
from fedpart.updates.combining.base import COMBINATIONS, Combination


@COMBINATIONS.register("fedbn")
class FedBN(Combination):
    """Scales and biases of normalisation layers stay with clients (Li et al. 2021, FedBN: Federated Learning
    on Non-IID Features via Local Batch Normalization); here no layer has running statistics that could."""

    keeps = personal = True

    def stays(self, task: Task) -> Collection[str]:
        stacked = stacked_parameters(task.module)
        names = [entry.name for entry in task.parameter_space(1).entries if entry.name in stacked]
        none = "fedbn keeps normalisation with the clients, and this network has none that is trained"
        require(names, f"{none}; use another network, or fedrep.")
        return names


@COMBINATIONS.register("fedrep")
class FedRep(Combination):
    """The head stays with clients, and is trained before the rest is (Collins et al. 2021, Exploiting Shared
    Representations for Personalized Federated Learning, Algorithm 1).

    Args:
        head: names of its weights, with the wildcards ``*`` and ``?``; None: those of the last layer.
        head_epochs: passes over the shard in which the head moves alone, before ``local.epochs`` of the rest;
            0: both move together (FedPer, Arivazhagan et al. 2019).
    """

    keeps = personal = True

    def __init__(self, head: Sequence[str] | None = None, head_epochs: int = 1) -> None:
        if head is not None:
            check_texts("fedrep's head", head, "names of weights", "[classes.*]")
            require(head, "fedrep's head is empty, so that nothing stays with clients; name its weights.")
        check_whole("fedrep's head_epochs", head_epochs, 0)
        self._head, self.head_epochs = head, head_epochs

    def stays(self, task: Task) -> Collection[str]:
        names = [entry.name for entry in task.parameter_space(1).entries]
        layers = [name.partition("parametrizations.")[0].rpartition(".")[0] for name in names]
        if self._head is None:
            return [name for name, layer in zip(names, layers, strict=True) if layer == layers[-1]]
        for pattern in self._head:
            none = f"No trained weight of the network matches fedrep's head {pattern!r}"
            require(any(fnmatch(name, pattern) for name in names), f"{none}: {nearest(pattern, names)}")
        return [name for name in names if any(fnmatch(name, pattern) for pattern in self._head)]


@COMBINATIONS.register("ditto")
class Ditto(Combination):
    """Beside the shared network a client trains one of its own, on its loss plus ``lam/2 |v - w|^2``, w being
    the server's (Li et al. 2021, Ditto: Fair and Robust Federated Learning Through Personalization, Eq. 1 and
    Algorithm 1). It takes the same steps, on the same batches: clients compute twice as much.

    Args:
        lam: lambda of the pull, per squared unit of the weights, in nats; the paper tries 0.05 to 2.
    """

    keeps = personal = True

    def __init__(self, lam: float = 0.1) -> None:
        require(is_number(lam) and 0 <= lam < float("inf"), f"ditto's lam is a number >= 0, got {lam!r}.")
        self.tie = float(lam)
