"""What a preprocessing is: a module without parameters, described by plain data."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedpart.registry import Registry


class Preprocessing(nn.Module):
    """Raw examples become inputs of a network: ``forward`` takes them as a tensor, and :meth:`inputs` as
    people have them. Nothing in it is trained.

    Args:
        state: what describes it, plain data as JSON has them.
    """

    kinds: ClassVar[dict[str, type["Preprocessing"]]] = {}

    def __init__(self, state: Mapping[str, Any]) -> None:
        super().__init__()
        self.state = dict(state)

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.kinds[kind] = cls

    @property
    def names(self) -> list[str]:
        """Of the columns of raw examples; none where these are no rows."""
        return [column["name"] for column in self.state.get("columns", ())]

    def inputs(self, given: Any) -> Tensor:
        """Inputs ``[n, ...]`` float32 of a network, for raw examples as people have them; a ValueError says
        what cannot be told from inputs that are made already."""
        raise NotImplementedError

    def outputs(self, given: Any) -> Any:
        """What a network gave, in units of the targets: ``target`` of the state has their ``mean`` and
        ``deviation`` where it was trained on them as deviations from the mean."""
        unit = self.state.get("target")
        return given if unit is None else unit["mean"] + unit["deviation"] * given

    def example(self, rows: int) -> Tensor:
        """Made-up raw examples ``[rows, ...]``."""
        raise NotImplementedError


OWN: Registry[type[Preprocessing]] = Registry("preprocessing", makes=(Preprocessing,))


def preprocessing_of(state: Mapping[str, Any]) -> Preprocessing:
    """What a ``state`` describes, which a run's ``summary.json`` and exported files have; its ``kind`` is a
    name, or that of a class of one's own, ``package.module:Class``."""
    return (Preprocessing.kinds.get(state["kind"]) or OWN.resolve(state["kind"]))(state)


class Behind(nn.Module):
    """A network behind a preprocessing: it takes raw examples, and answers in units of the targets."""

    def __init__(self, preprocessing: Preprocessing, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.preprocessing, self.network, self._dtype = preprocessing, network, dtype

    def forward(self, raw: Tensor) -> Any:
        """What the network says of ``raw [n, ...]``."""
        made = self.preprocessing(raw)
        made = made.to(self._dtype) if made.is_floating_point() else made
        return self.preprocessing.outputs(self.network(made))
