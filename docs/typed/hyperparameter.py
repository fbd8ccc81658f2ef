"""A hyperparameter of one's own, and centralised training, as a type checker sees them."""

import torch
from torch import Tensor, nn

from fedpart import AdamSettings, HyperModule, Task, fit, normal


class Jitter(HyperModule):
    """Adds noise to every number of an input; its scale is learned."""

    hyperparameters = ("scale",)

    def __init__(self, initial: float = 0.1) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(initial))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * normal(tuple(x.shape), like=x)

    def physical(self) -> dict[str, float]:
        return {"scale": self.scale.item()}


inputs, targets = torch.rand(80, 4), torch.randint(3, (80,))
task = Task(nn.Linear(4, 3), transforms=[Jitter()], samples=2)
result = fit(
    task,
    (inputs, targets),
    test=(inputs, targets),
    iterations=4,
    batch_size=8,
    optimiser=AdamSettings(1e-2),
    optimiser_psi={"learning_rate": 1e-2},
    evaluate_every=2,
)
psi: dict[str, float] = result.psi
loss: float | None = result.test_nll
