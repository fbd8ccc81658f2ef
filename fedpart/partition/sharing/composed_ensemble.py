"""SuperWeight Networks' ensembles, and others whose members' weights are composed from shared numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fedpart.nn.models.ensembles.ensemble import ENSEMBLES, BuildMember, Ensemble, Member
from fedpart.partition.sharing import sharing_of


@ENSEMBLES.register("composed")
def composed(build: BuildMember, members: Sequence[Member], sharing: Mapping[str, Any]) -> Ensemble:
    """Members of any sizes, composed by a :class:`.Sharing`: ``{kind: bank, budget: 80000}``."""
    networks = [build(member) for member in members]
    seed = int(torch.randint(2**31, ()))  # as the networks' initial values
    return Ensemble(sharing_of(sharing).compose(networks, seed))
