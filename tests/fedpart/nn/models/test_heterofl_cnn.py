"""HeteroFL's network has its published sizes, and a narrow one computes what it does within the wide one."""

import pytest
import torch

from fedpart.nn.models import heterofl_cnn
from fedpart.partition.nested import leading
from fedpart.partition.space import ParameterSpace


@pytest.mark.parametrize(
    ("width", "numbers"), [(1.0, 1_556_874), (0.5, 391_370), (0.25, 98_922), (0.125, 25_274), (0.0625, 6_594)]
)
def test_published_numbers_of_parameters(width, numbers):
    """As the table of Flower's baseline has them: 1,556.874 K to 6.594 K."""
    module = heterofl_cnn(width=width)
    assert sum(parameter.numel() for parameter in module.parameters()) == numbers
    assert len(leading(ParameterSpace(heterofl_cnn()), ParameterSpace(module).entries)) == numbers


def test_the_scaler_makes_up_for_units_that_are_not_there_while_training():
    torch.manual_seed(0)
    narrow = heterofl_cnn(width=0.5)
    convolved = narrow[0](x := torch.rand(2, 1, 28, 28))
    assert torch.equal(narrow.train()[1](convolved), convolved * 2)
    assert torch.equal(narrow.eval()[1](convolved), convolved)
    assert not any("Scaler" in type(layer).__name__ for layer in heterofl_cnn(width=0.5, scaler=False))
    first = heterofl_cnn(scaler=False)[:3]
    part = heterofl_cnn(width=0.5, scaler=False)[:3]
    part.load_state_dict({name: value[:32] for name, value in first.state_dict().items()})
    torch.testing.assert_close(part(x), first(x)[:, :32])  # its norm's groups are the same
