"""What a task runs: transforms, network and likelihood as one module, and the batches that go through it."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedpart.checks import NetworkError, require
from fedpart.nn.layers.batchnorm import guard_group_norms
from fedpart.nn.likelihoods import Likelihood
from fedpart.randomness.noise import Noise
from fedpart.randomness.strata import strata
from fedpart.task.adapting import explain_types
from fedpart.task.calling import call, outputs_of, replaced
from fedpart.trees import Tree, first_leaf, map_leaves


class Batch(NamedTuple):
    """Examples with optional weights (padding has weight 0).

    ``inputs [B, ...]``, ``targets [B, ...]``: trees, see :mod:`fedpart.trees`; ``weights [B]`` or None.
    """

    inputs: Tree
    targets: Tree
    weights: Tensor | None = None

    @property
    def examples(self) -> int:
        """B."""
        return len(first_leaf(self.inputs))

    def to(self, device: torch.device | str) -> "Batch":
        """The batch, there."""
        inputs, targets, weights = map_leaves(
            lambda leaf: None if leaf is None else leaf.to(device), tuple(self)
        )
        return Batch(inputs, targets, weights)


class Prediction(NamedTuple):
    """``outputs [B, ...]``, averaged over the samples; ``nll [B]`` nats; ``hits [B]``: the share of each
    example that is predicted rightly, None where there are no classes."""

    outputs: Tensor
    nll: Tensor
    hits: Tensor | None


class Model(nn.Module):
    """Transforms, the user's module, the likelihood: one tree, so that one substitution reaches w and psi."""

    def __init__(
        self,
        transforms: Mapping[str, nn.Module],
        module: nn.Module,
        likelihood: Likelihood,
        samples: int,
        bf16: bool,
        channels_last: bool,
        stratified: bool,
    ) -> None:
        super().__init__()
        self.transforms = nn.ModuleDict(transforms)
        self.module = module
        self.ends = nn.ModuleDict({"likelihood": likelihood})
        self.samples, self.bf16, self.channels_last = samples, bf16, channels_last
        self.stratified = stratified and samples > 1
        if channels_last:
            guard_group_norms(module)
        recurrent = any(isinstance(layer, nn.RNNBase) for layer in module.modules())
        # oneDNN fails at recurrent layers in 16 bits where a processor cannot compute with them.
        self._wide = recurrent and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
        self._resting = [layer for layer in module.modules() if not layer.training]

    def switch(self, dropout: bool) -> None:
        """Switch the network's stochastic layers; a part that came in evaluation mode stays in it."""
        self.module.train(dropout)
        self.training = dropout  # the network itself may rest
        for layer in self._resting:
            layer.training = False

    def forward(self, x: Tree, share: Noise | None, targets: Tree | None = None) -> Any:
        """What the network returns for all rows ``[B*S, ...]`` of ``x [B, ...]``; ``share``: the noise, if
        the samples of an example have it in common; ``targets``: for a network that computes its loss
        itself."""
        samples = self.samples
        if samples > 1:
            x = map_leaves(lambda leaf: leaf.repeat_interleave(samples, 0), x)
            if targets is not None:
                targets = map_leaves(lambda leaf: leaf.repeat_interleave(samples, 0), targets)
        with strata(samples, len(first_leaf(x))) if self.stratified else nullcontext():
            x = self.augmented(x)
        if self.channels_last:
            x = map_leaves(channels_last_of, x)
        first = first_leaf(x)
        # Only the network runs in low precision: coordinates of an image do not fit into bfloat16.
        low = self.bf16 and not (self._wide and first.device.type == "cpu")
        cast = torch.autocast(first.device.type, torch.bfloat16) if low else nullcontext()
        with cast, share.repeated(samples, len(first)) if share is not None else nullcontext():
            try:
                return call(self.module, x, targets)
            except RuntimeError as error:
                explain_types(self.module, x, error)
                raise

    def augmented(self, x: Tree) -> Tree:
        """The inputs of all rows, transformed."""
        for name, transform in self.transforms.items():
            part: Any = transform.part
            whole = part == "*" or (part is None and isinstance(x, Tensor))
            x = transform(x) if whole else replaced(x, part, transform, name)
        return x

    def widths(self) -> Tensor:
        """Widths of all transforms' distributions, one vector; see :meth:`.Task.widths`."""
        all_widths = [transform.widths() for transform in self.transforms.values()]  # type: ignore[operator]
        learned = [width for width in all_widths if width is not None]
        remedy = "add AffineAugmentation, or define widths() in your own"
        require(learned, f"No transform of the task has widths; {remedy}.")
        return torch.cat(learned)

    def averaged(self, found: Any, examples: int, dtype: torch.dtype) -> Tensor:
        """The outputs ``[B, ...]`` in what the network returned, averaged over the samples."""
        out = outputs_of(found).to(dtype)
        if not out.ndim or len(out) != examples * self.samples:
            raise NetworkError(
                f"The network returns outputs {list(out.shape)} for {examples * self.samples} rows; the "
                f"first dimension of what it takes and returns must be that of examples (batch_first=True)."
            )
        return self.likelihood.over_samples(out.view(examples, self.samples, *out.shape[1:]))

    @property
    def likelihood(self) -> Likelihood:
        """p(y | outputs)."""
        return self.ends["likelihood"]  # type: ignore[return-value]


def channels_last_of(value: Tensor) -> Tensor:
    """Images, and the weights of their convolutions, with channels next to each other in memory."""
    if value.ndim != 4:
        return value
    if value.shape[1] == 1:  # the strides of a single channel say nothing, unless they are set
        return value.reshape(-1).contiguous().view(len(value), *value.shape[2:], 1).movedim(-1, 1)
    return value.contiguous(memory_format=torch.channels_last)
