"""Which layers of an ensemble share, learned from gradients (SuperWeight Networks, Teterwak et al. 2024).

This follows the authors' text. The gradients are those of a whole data set, where their code takes one batch.
"""

from torch import Tensor

from fedpart.data.dataset import Dataset
from fedpart.nn.models.ensembles import Ensemble
from fedpart.partition.sharing import Composed
from fedpart.partition.sharing.learned import Layer, clusters_of, recipes_of
from fedpart.training.state import ModelState
from fedpart.training.weight_gradients import gradients_of_weights


def learned_clusters(state: ModelState, dataset: Dataset, tau: float = 0.1, *, k: int = 1) -> list[list[str]]:
    """Groups of layers that share, see :func:`.clusters_of`.

    Args:
        state: a trained ensemble, composed by :class:`.Bank`; ``clusters: depth`` and ``coupled: true`` are
            what the authors begin with.
        dataset: on whose sum of losses gradients are taken, e.g. that of the first chunk.
        tau: see :func:`.clusters_of`.
        k: the subnetwork that is asked: the first has seen the first chunk alone.

    Raises:
        TypeError: the members are not composed by a bank.
    """
    return clusters_of(weight_gradients(state, dataset, k), recipes_of(_members(state, k)), tau)


def weight_gradients(state: ModelState, dataset: Dataset, k: int = 1) -> dict[Layer, Tensor]:
    """Gradients of the composed weights, by member and layer: of the sum of cross-entropies, in inference.

    A temperature or label smoothing that the ensemble's likelihood may have is left out.

    Args:
        state: whose network is an :class:`.Ensemble` of :class:`.Composed` members.
        dataset: at least one example.
        k: subnetwork.
    """
    gradients: dict[Layer, Tensor] = {}
    for index, member in enumerate(_members(state, k)):
        layers, precision = [*member.recipes], state.task.precision
        each = gradients_of_weights(member.plain(), layers, dataset, precision=precision)
        gradients |= {(index, name): gradient for name, gradient in each.items()}
    return gradients


def _members(state: ModelState, k: int) -> list[Composed]:
    module = state.module(state.tensors(k))
    members = [*module.members] if isinstance(module, Ensemble) else []
    composed = [member for member in members if isinstance(member, Composed)]
    if not members or len(composed) < len(members):
        raise TypeError(
            f"The network is a {type(module).__name__} whose members are not composed; build it with model: "
            f"ensemble and kind: composed."
        )
    return composed
