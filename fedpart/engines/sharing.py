"""Which layers of clients' networks share, learned from gradients that a few cohorts upload once each.

SuperWeight Networks (Teterwak et al. 2024) learn it in one place. Here a round of search is a cohort whose
clients send the gradients of their composed weights, as many numbers as their plain network's layers have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedpart.centralised.sharing import gradients_of_weights
from fedpart.data.dataset import Dataset
from fedpart.federated.cohorts import state_bytes
from fedpart.federated.federation import Federation
from fedpart.partition.sharing import Composed
from fedpart.partition.sharing.learned import Layer, clusters_of, recipes_of


@dataclass(frozen=True)
class Learned:
    """What a search has found, and what it has cost besides the training before it."""

    groups: list[list[str]]  # what Bank takes as `clusters`
    upload_bytes: int  # without headers
    download_bytes: int
    clients: int  # that answered


def learned_clusters(
    federation: Federation,
    shards: Sequence[Dataset],
    tau: float = 0.1,
    *,
    rounds: int = 5,
    data: Literal["first", "all"] = "first",
) -> Learned:
    """Groups of layers that share, see :func:`.clusters_of`; the federation stays as it is.

    Args:
        federation: trained for a while, with ``architectures`` and ``sharing`` of kind bank.
        shards: of its clients.
        tau: see :func:`.clusters_of`.
        rounds: of search, whose cohorts are those that would come next.
        data: whose gradients count. ``first``: of the clients of chunk 1, through subnetwork 1, so that the
            structure has seen nothing that psi is judged by; ``all``: of all, through the whole network.

    Raises:
        ValueError: networks are not composed by a bank; or nobody of chunk 1 is in the cohorts.
    """
    gradients, costs = searched_gradients(federation, shards, rounds, data)
    return Learned(clusters_of(gradients, recipes_of(_networks(federation)), tau), *costs)


def searched_gradients(
    federation: Federation, shards: Sequence[Dataset], rounds: int, data: str
) -> tuple[dict[Layer, Tensor], tuple[int, int, int]]:
    """Gradients of composed weights, by architecture and layer, summed over cohorts; see
    :func:`learned_clusters`. Also bytes up and down, and how many clients have answered."""
    if data not in ("first", "all"):
        raise ValueError(f"data are first or all, the chunks that decide what is shared, got {data!r}.")
    if rounds < 1:
        raise ValueError(f"A search has at least one round, got rounds: {rounds}.")
    protocol, networks = federation.protocol, _networks(federation)
    k = 1 if data == "first" else protocol.partition.chunks
    states = [federation.of_architecture(index) for index in range(len(networks))]
    plain = [state.module(state.tensors(k)) for state in states]
    found, precision = dict[Layer, Tensor](), federation.task.precision
    up = down = clients = 0
    with federation.task.likelihood_at(federation.psi.cpu()) as likelihood:
        for number in range(federation.round + 1, federation.round + rounds + 1):
            for client in federation.cohort(number):
                if data == "first" and protocol.chunk(client) > 1:
                    continue
                index = protocol.architectures[client]
                layers = [*networks[index].recipes]
                each = gradients_of_weights(plain[index], layers, shards[client], likelihood, precision)
                for name, gradient in each.items():
                    found[index, name] = gradient + found.get((index, name), 0)
                up += sum(gradient.numel() * gradient.itemsize for gradient in each.values())
                down, clients = down + state_bytes(protocol, client), clients + 1
    missing = [index for index in range(len(networks)) if not any(i == index for i, _ in found)]
    if missing:
        raise ValueError(
            f"None of the {clients} clients asked in {rounds} rounds of search has the architecture "
            f"{missing[0]}; search for more rounds."
        )
    return found, (up, down, clients)


def _networks(federation: Federation) -> list[Composed]:
    found = [task.module for task in federation.protocol.tasks]
    composed = [module for module in found if isinstance(module, Composed)]
    if len(composed) < len(found):
        raise ValueError(
            "The federation's networks are not composed, so that nothing is shared by clusters; give it "
            "architectures and sharing={'kind': 'bank', 'clusters': 'depth', 'coupled': True}."
        )
    return composed
