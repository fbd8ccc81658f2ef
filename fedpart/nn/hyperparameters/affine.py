"""Affine augmentation as part of the model: p(y|x) averages the network over sampled transforms of x.

Families of distributions over affine maps that can be learned:

- ``minmax``: 14 numbers, the minimum and maximum of seven components, each sampled as
  ``min + (max - min) U(0, 1)``; the matrix is a closed-form product (:func:`minmax_matrix`).
  ``centred`` is the same family in other coordinates, centre and half-width. Adam is not invariant to
  that choice: noise common to minimum and maximum no longer drowns the gradient of their difference.
  ``schwobel`` is ``minmax`` with the product of Schwobel et al. 2021, the paper's MNIST setting
  (:func:`schwobel_matrix`). Centres of these three are free, so they can learn an offset.
  ``symmetric``: seven half-widths around the identity, with Schwobel's product.
- ``augerino`` (Benton et al. 2020): 6 widths through softplus, components ``U(-w/2, w/2)``; the matrix is the
  exponential of the sum of generators.
- ``lila`` (Immer et al. 2022, the paper's CIFAR setting): 6 half-widths p, components ``U(-p, p)``; a matrix
  exponential too, with scales along x and y instead of isotropic scale and stretch.

Coordinates are those of ``grid_sample``: the image spans [-1, 1] on both axes (x to the right, y down), and a
matrix ``A [2, 3]`` maps a point of the output to the point of the input that is read there."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedpart.nn.hyperparameters.base import TRANSFORMS, Bound, HyperModule, check_images
from fedpart.randomness.noise import uniform
from fedpart.registry import nearest

Family = Literal["minmax", "centred", "schwobel", "symmetric", "augerino", "lila"]
PADDINGS = ("zeros", "border", "reflection")


def warp(images: Tensor, matrices: Tensor, *, align_corners: bool = True, padding: str = "zeros") -> Tensor:
    """Resample images ``[N, channels, height, width]``, each under its own affine map, bilinearly.

    ``matrices [N, 2, 3]`` map output coordinates to input coordinates, both in [-1, 1]. With
    ``align_corners`` -1 and 1 are the centres of the outermost pixels, else their edges. ``padding`` is what
    lies outside, one of :data:`PADDINGS`."""
    n, _, height, width = images.shape
    short = images.dtype.itemsize < 4  # 16 bits do not tell neighbouring pixels apart
    pixels = images.float() if short else images
    base = _base_grid(height, width, align_corners, pixels)
    # torch's affine_grid has no batching rule under vmap, and multiplies n small matrices instead of two
    with torch.autocast(images.device.type, enabled=False):
        grid = (matrices.to(base).reshape(2 * n, 3) @ base).view(n, 2, height, width).permute(0, 2, 3, 1)
        how: dict[str, Any] = {"padding_mode": padding, "align_corners": align_corners}
        return F.grid_sample(pixels, grid, mode="bilinear", **how).to(images.dtype)


def _base_grid(height: int, width: int, align_corners: bool, like: Tensor) -> Tensor:
    """Homogeneous pixel coordinates ``[3, height * width]``, columns (x, y, 1)."""

    def axis(n: int) -> Tensor:
        edge = 1.0 if align_corners and n > 1 else 1.0 - 1.0 / n
        return torch.linspace(-edge, edge, n, device=like.device, dtype=like.dtype)

    y, x = torch.meshgrid(axis(height), axis(width), indexing="ij")
    return torch.stack([x, y, torch.ones_like(x)]).view(3, -1)


def minmax_matrix(theta: Tensor) -> Tensor:
    """Closed-form product rotation x shear x scale, then translation, ``[N, 2, 3]``, of ``theta [N, 7]``:
    angle (radians), scale x, scale y, shear x, shear y, shift x, shift y (1 = half the image)."""
    angle, sx, sy, hx, hy, tx, ty = theta.unbind(-1)
    # shear @ scale = [[1, hx], [hy, 1]] @ diag(sx, sy)
    a, b, c, d = _rotated(angle, sx, hx * sy, hy * sx, sy)
    return torch.stack([a, b, tx, c, d, ty], dim=-1).view(-1, 2, 3)


def schwobel_matrix(theta: Tensor) -> Tensor:
    """Product of Schwobel et al. 2021 (their published code): ``A = R(angle) [[1, hx], [hy, 1 + hx hy]]
    diag(sx, sy)`` and ``-A p`` with the shift p, ``[N, 2, 3]``, of :func:`minmax_matrix`'s ``theta [N,
    7]``."""
    angle, sx, sy, hx, hy, px, py = theta.unbind(-1)
    a, b, c, d = _rotated(angle, sx, hx * sy, hy * sx, (1 + hx * hy) * sy)
    return torch.stack([a, b, -(a * px + b * py), c, d, -(c * px + d * py)], dim=-1).view(-1, 2, 3)


def _rotated(angle: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, ...]:
    """The entries of ``R(angle) [[a, b], [c, d]]``, row by row, ``[N]`` each."""
    cos, sin = angle.cos(), angle.sin()
    return cos * a - sin * c, cos * b - sin * d, sin * a + cos * c, sin * b + cos * d


def generator_matrix(coefficients: Tensor) -> Tensor:
    """``exp(sum_i c_i G_i)``, its first two rows ``[N, 2, 3]``, of Augerino's six generators (Benton et al.
    2020, and its published code): shift x, shift y, rotation (radians), isotropic scale, stretch, shear."""
    tx, ty, angle, scale, stretch, shear = coefficients.unbind(-1)
    zero = torch.zeros_like(tx)
    rows = [scale + stretch, shear - angle, tx, shear + angle, scale - stretch, ty, zero, zero, zero]
    exponential: Tensor = torch.linalg.matrix_exp(torch.stack(rows, dim=-1).view(-1, 3, 3))
    return exponential[:, :2]


_SEVEN = ("angle", "scale_x", "scale_y", "shear_x", "shear_y", "shift_x", "shift_y")
_IDENTITY = (0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


@TRANSFORMS.register("affine")
class AffineAugmentation(HyperModule):
    """An input transform that samples one affine map per row from a learned distribution.

    Args:
        family: ``minmax``, ``centred`` or ``schwobel`` (14 numbers), ``symmetric`` (7), ``augerino`` or
            ``lila`` (6); see the module's text.
        initial: where the distribution starts. ``augerino``: the raw widths before softplus, one number or
            six (default 0, that is a width of 0.69; -5 is nearly none). Elsewhere half-widths around the
            identity, one number, or one per component (default 0.02; where the centre is held, the expected
            gradient is 0 at 0, for p and -p are the same). In every family a number for each of some
            components, by name; the others have the default.
        align_corners, padding: see :func:`warp`.
        wrap: of ``lila``: whether its angles may pass a half turn, where they come round. Otherwise, as in
            the published code, they end there, and beyond it the half-width has no gradient that would bring
            it back.
    """

    hyperparameters: ClassVar[tuple[str, ...]] = ("range",)
    fixed = ("family", "align_corners", "padding")
    components: ClassVar[dict[str, tuple[str, ...]]] = {
        **dict.fromkeys(("minmax", "centred", "schwobel", "symmetric"), _SEVEN),
        "augerino": ("shift_x", "shift_y", "angle", "scale", "stretch", "shear"),
        "lila": ("shift_x", "shift_y", "angle", "scale_x", "scale_y", "shear"),
    }
    _TRANSLATION_SCALE = 0.1  # Augerino's trans_scale

    def __init__(
        self, family: Family = "lila", initial: float | Sequence[float] | Mapping[str, float] | None = None,
        align_corners: bool = True, padding: str = "zeros", wrap: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wrap = wrap
        if family not in self.components:
            raise ValueError(f"Unknown affine family {family!r}; choose one of {', '.join(self.components)}.")
        if padding not in PADDINGS:
            raise ValueError(f"Unknown padding {padding!r}; choose one of {', '.join(PADDINGS)}.")
        self.family, self.align_corners, self.padding = family, align_corners, padding
        names = self.components[family]
        default = 0.0 if family == "augerino" else 0.02
        if isinstance(initial, Mapping):
            for name in initial:
                if name not in names:
                    raise ValueError(f"The {family} family has no {name!r}: {nearest(name, names)}")
            initial = [initial.get(name, default) for name in names]
        initial = default if initial is None else initial
        start = torch.tensor([initial] * len(names) if isinstance(initial, (int, float)) else list(initial))
        if start.shape != (len(names),):
            fault = f"The {family} family starts from one number or {len(names)} ({', '.join(names)}),"
            raise ValueError(f"{fault} got {start.numel()}.")
        start = start.to(torch.get_default_dtype())
        if family in ("minmax", "schwobel"):
            start = torch.stack(_around(start))
        elif family == "centred":
            start = torch.stack([start.new_tensor(_IDENTITY), start])
        # [2, 7] minimum, maximum (minmax, schwobel) or centre, half-width (centred); [7] symmetric; [6]
        self.range = nn.Parameter(start)

    def sample(self, n: int, aspect: float = 1.0) -> Tensor:
        """``n`` affine maps from the current distribution, ``[n, 2, 3]``, of images whose width is ``aspect``
        times their height: it is pixels that are turned and sheared."""
        if aspect == 1:
            return self._matrices(n, None)
        across = [aspect if name == "shift_x" else 1.0 for name in self.components[self.family]]
        matrices = self._matrices(n, self.range.new_tensor(across))
        return matrices * matrices.new_tensor([[1, 1 / aspect, 1 / aspect], [aspect, 1, 1]])

    def _matrices(self, n: int, across: Tensor | None) -> Tensor:
        """In units of half the height, where what is drawn is multiplied by ``across``; else of each side."""
        u = uniform((n, len(self.components[self.family])), like=self.range)
        if self.components[self.family] is _SEVEN:
            low, high = self._bounds()
            matrix = minmax_matrix if self.family in ("minmax", "centred") else schwobel_matrix
            drawn = low + (high - low) * u
            return matrix(drawn if across is None else drawn * across)
        coefficients = self.widths() * (u - 0.5)
        coefficients = coefficients if across is None else coefficients * across
        if self.family == "lila":
            tx, ty, angle, x, y, shear = coefficients.unbind(-1)
            return generator_matrix(torch.stack([tx, ty, angle, (x + y) / 2, (x - y) / 2, shear], dim=1))
        shift = coefficients[:, :2] * self._TRANSLATION_SCALE
        return generator_matrix(torch.cat([shift, coefficients[:, 2:]], dim=1))

    def forward(self, x: Tensor) -> Tensor:
        """``x``: images ``[rows, channels, height, width]``; each row gets its own map."""
        check_images(x, "Affine augmentation")
        height, width = (max(1, n - self.align_corners) for n in x.shape[-2:])
        matrices = self.sample(len(x), width / height)
        return warp(x, matrices, align_corners=self.align_corners, padding=self.padding)

    def bounds(self) -> dict[str, tuple[Bound, Bound]]:
        """A full turn, shifts by a whole image, scales and shears by ten; ``augerino`` rewards any width."""
        if self.family == "augerino":
            return {}
        largest = self.range.new_tensor([_LARGEST[name] for name in self.components[self.family]])
        if self.family == "lila":  # whose scales and shear are exponents
            largest[3:].log_()
        largest = largest.expand_as(self.range)
        return {"range": (-largest, largest)}

    def extra_repr(self) -> str:
        return super().extra_repr() + (", wrap=True" if self.wrap else "")

    def widths(self) -> Tensor:
        """Width of each component's uniform distribution, ``[7]`` or ``[6]``; of ``lila`` 2p, so that
        Augerino's regulariser of them is twice that of LILA, which takes p."""
        if self.family == "augerino":
            return F.softplus(self.range)
        if self.family == "lila":
            half = torch.full_like(self.range.detach(), math.inf)
            if not self.wrap:
                half[2] = math.pi  # more than a full turn is none (the published code)
            return 2 * torch.minimum(torch.maximum(self.range, -half), half)
        low, high = self._bounds()
        return high - low

    def physical(self) -> dict[str, float]:
        """Smallest and largest value of each component: angles in degrees, shifts in percent of the image,
        scales as factors."""
        if self.family in ("augerino", "lila"):
            half = (self.widths().detach() / 2).tolist()
            if self.family == "augerino":
                half[:2] = [self._TRANSLATION_SCALE * h for h in half[:2]]
            low, high = [-h for h in half], half
            for i, name in enumerate(self.components[self.family]):
                if name.startswith("scale"):
                    low[i], high[i] = math.exp(-min(high[i], _BEYOND)), math.exp(min(high[i], _BEYOND))
        else:
            low, high = (bound.detach().tolist() for bound in self._bounds())
        values = {}
        for name, a, b in zip(self.components[self.family], low, high, strict=True):
            unit, factor = _UNITS.get(name, ("", 1.0))
            values[f"{name}_min{unit}"], values[f"{name}_max{unit}"] = sorted((a * factor, b * factor))
        return values

    def remarks(self, physical: Mapping[str, float]) -> list[str]:
        """Which centres are further from the identity than their half-width, and what to do about it."""
        away = []
        for name in self.components[self.family]:
            unit, _ = _UNITS.get(name, ("", 1.0))
            low, high = physical[f"{name}_min{unit}"], physical[f"{name}_max{unit}"]
            if not low <= float(name.startswith("scale")) <= high:
                away.append(f"{name}{unit} {low:.2f} to {high:.2f}")
        if not away:
            return []
        return [
            f"Learned ranges leave out images as they are, for centres have moved by more than half-widths: "
            f"{', '.join(away)}. Unless the data give a reason for such an offset, use a family that is "
            f"symmetric, such as lila."
        ]

    def _bounds(self) -> tuple[Tensor, Tensor]:
        if self.family == "symmetric":
            return _around(self.range)
        first, second = self.range
        return (first - second, first + second) if self.family == "centred" else (first, second)


def _around(half: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest components of ranges around the identity with these half-widths, ``[7]`` each."""
    identity = half.new_tensor(_IDENTITY)
    return identity - half, identity + half


_BEYOND = 80.0  # nothing is left of an image under such a scale; its exponential must remain a number

# A shift of 1 is half the image, so 50% of its side.
_UNITS = {"angle": (" [deg]", 180 / math.pi), "shift_x": (" [%]", 50.0), "shift_y": (" [%]", 50.0)}
# Of each component, ends of a range beyond which nothing is left of an image, or nothing changes any more.
_LARGEST = {"angle": 2 * math.pi, "shift_x": 2.0, "shift_y": 2.0, "scale_x": 10.0, "scale_y": 10.0}
_LARGEST |= dict.fromkeys(("shear_x", "shear_y", "shear"), 10.0)
