"""FedAvg with a server-side Adam (McMahan et al. 2017, Reddi et al. 2020): the baseline without psi."""

from fedpart.methods.base import METHODS, ClientView
from fedpart.methods.plain import Plain
from fedpart.task.gradients import Job


@METHODS.register("fedavg")
class FedAvg(Plain):
    """Plain federated learning; see :class:`.Plain` for what is switched off."""

    def plan(self, client: ClientView) -> list[Job]:
        return [Job(subnetwork=1, partition=1)]
