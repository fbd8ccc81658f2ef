"""What a likelihood is: averaged network outputs become a negative log-likelihood per example."""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from itertools import product
from typing import Any, ClassVar
from weakref import WeakSet

import torch
from torch import Tensor
from torch.nn.modules.loss import _Loss
from torch.overrides import TorchFunctionMode

from fedpart.checks import NetworkError
from fedpart.nn.hyperparameters.base import HyperModule
from fedpart.registry import Registry, nearest
from fedpart.trees import map_leaves

AVERAGES = ("logits", "log_probabilities", "probabilities")
Fault = tuple[Tensor, str, str]  # where [n, ...], what is there, and what to do


class Likelihood(HyperModule):
    """p(y | outputs). Subclass it in a file of its own and register it: ``@LIKELIHOODS.register("name")``.

    All its parameters are hyperparameters, learned by L_ML.

    Attributes:
        averages: what of the outputs can be averaged over the S samples, see :func:`average_samples`.
        average: what is.
        has_hits: whether :meth:`hits` tells right predictions from wrong ones; None: only its answer tells.
        real_targets: whether targets are numbers to predict, and a loader of tables reads them as such.
        scaled: whether there is an ``in_units(mean, deviation)``, see :meth:`.Gaussian.in_units`.
    """

    averages: ClassVar[tuple[str, ...]] = ("logits",)
    average = "logits"
    has_hits: ClassVar[bool | None] = None
    real_targets: ClassVar[bool] = False
    scaled: ClassVar[bool] = False

    @property
    def hyperparameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(name for name, _ in self.named_parameters(recurse=False))

    def over_samples(self, outputs: Tensor) -> Tensor:
        """The network's outputs ``[B, S, ...]`` averaged over S, ``[B, ...]``."""
        return average_samples(outputs, self.average)

    def forward(self, outputs: Tensor, targets: Any) -> Tensor:
        """Negative log-likelihoods ``[B]``, nats, given averaged outputs ``[B, ...]``."""
        raise TypeError(f"{type(self).__name__} does not define forward().")

    def of_each(self, outputs: Tensor, targets: Any) -> Tensor:
        """:meth:`forward`, checked: a likelihood of one's own may return another shape."""
        return self._checked(self, outputs, targets)

    def loss(self, outputs: Tensor, targets: Any) -> Tensor:
        """What training minimises, ``[B]`` nats, with the arguments of :meth:`forward`: -log p, unless a
        likelihood says otherwise. What is reported is always -log p."""
        return self(outputs, targets)  # type: ignore[no-any-return]

    def loss_of_each(self, outputs: Tensor, targets: Any) -> Tensor:
        """:meth:`loss`, checked as :meth:`of_each` is."""
        return self._checked(self.loss, outputs, targets)

    def _checked(self, compute: Callable[..., Tensor], outputs: Tensor, targets: Any) -> Tensor:
        due = len(outputs) > 1 and outputs.requires_grad and self not in _LOOKED_AT
        with (seen := _Broadcasts(len(outputs))) if due else nullcontext():
            nll = compute(outputs, targets)
        if due and torch._C._functorch.peek_interpreter_stack() is None:
            if seen.broadcast:  # unless it is a grid that has as many entries as there are examples
                with suppress(Exception), (fewer := _Broadcasts(len(outputs) - 1)):
                    compute(*map_leaves(lambda leaf: leaf[:-1].clone(), (outputs, targets)))
                if fewer.broadcast:
                    fault = "The likelihood holds each example against all, for [B, 1] and [B] make [B, B];"
                    raise NetworkError(f"{fault} compute with outputs[:, 0], or with targets[:, None].")
            _LOOKED_AT.add(self)
        if nll.shape != (len(outputs),):
            remedy = ".flatten(1).sum(1)" if nll.ndim > 1 else 'and take no mean: reduction="none"'
            remedy = f"sum over the other dimensions, {remedy}"
            if nll.ndim > 1 and isinstance(targets, Tensor) and outputs.shape == (*targets.shape, 1):
                remedy += "; or, where targets [B] and outputs [B, 1] make [B, B], compute with outputs[:, 0]"
            fault = f"The likelihood returned shape {tuple(nll.shape)} where one negative log-likelihood per"
            raise NetworkError(f"{fault} example, {(len(outputs),)}, is expected; {remedy}.")
        return nll

    def outputs(self, num_classes: int) -> int:
        """How many outputs a network ends in for data with so many classes, or numbers to predict."""
        return num_classes

    def faults(self, targets: Tensor, classes: int | None) -> Iterable[Fault]:
        """What targets ``[n, ...]`` may not be, where that can be seen without outputs; see :meth:`check`."""
        return ()

    def check(self, targets: Any, classes: int | None = None, of: str = "") -> None:
        """Look at the values of all targets ``[n, ...]``, a tensor, once, before they are computed with.
        ``classes``: outputs for each prediction, where known; ``of``: what the message adds, ``" of the
        validation data"``."""
        if not isinstance(targets, Tensor) or not len(targets):
            return
        for where, what, remedy in self.faults(targets, classes):
            if count := int(where.reshape(len(targets), -1).any(1).sum()):
                raise ValueError(f"{count} of {len(targets)} examples{of} have {what}; {remedy}.")

    def hits(self, outputs: Tensor, targets: Any) -> Tensor | None:
        """Share of each example that is predicted rightly, ``[B]``; None where there are no classes."""
        return None

    def answers(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """What is predicted, given averaged outputs ``[B, ...]``, and how sure: classes ``[B]`` and
        probabilities ``[B, K]``; or the outputs themselves, and None."""
        return outputs, None

    def measures(self, outputs: Tensor, targets: Any) -> dict[str, float]:
        """What people call the quality of predictions, over all examples: F1, RMSE and the like."""
        return {}

    def extra_repr(self) -> str:
        """The fixed options, which server, clients and checkpoints agree on: public numbers, flags, words."""
        plain = (bool, int, float, str)
        options = {name: value for name, value in vars(self).items() if isinstance(value, plain)}
        hidden = ("training", "average", "part")
        return ", ".join(f"{n}={v!r}" for n, v in options.items() if n not in hidden and n[0] != "_")


_LOOKED_AT: WeakSet[Likelihood] = WeakSet()


class _Broadcasts(TorchFunctionMode):
    """Sees whether ``[B, B]`` is made of ``[B, 1]`` and ``[B]``, of which gradients are taken of one alone:
    of outputs and targets."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self._examples, self.broadcast = examples, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, b = func(*args, **(kwargs or {})), self._examples
        if isinstance(result, Tensor) and result.shape == (b, b):
            of = [each for each in (*args, *(kwargs or {}).values()) if isinstance(each, Tensor)]
            columns, rows = ({t.requires_grad for t in of if t.shape == s} for s in ((b, 1), (b,)))
            self.broadcast |= bool({(True, False), (False, True)} & {*product(columns, rows)})
        return result


class OwnLikelihood(Likelihood):
    """A function ``(outputs [B, ...], targets) -> nll [B]`` of the user's."""

    averages = AVERAGES
    has_hits = False

    def __init__(self, function: Callable[[Tensor, Any], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, outputs: Tensor, targets: Any) -> Tensor:
        return self.function(outputs, targets)


LIKELIHOODS: Registry[Callable[..., Likelihood]] = Registry("likelihood", makes=(Likelihood, Tensor))


def resolve_likelihood(
    chosen: str | Likelihood | Callable[[Tensor, Any], Tensor], average: str, options: Mapping[str, Any]
) -> tuple[str, Likelihood]:
    """A likelihood by name with its ``options``, or the user's own, that averages in this way; and its
    name."""
    if average not in AVERAGES:
        raise ValueError(f"Unknown average over samples {average!r}: {nearest(average, AVERAGES)}")
    if isinstance(chosen, str):
        if chosen not in LIKELIHOODS:
            hint = nearest(_MEANT.get(_plain(chosen), chosen), LIKELIHOODS)
            raise ValueError(f"Unknown likelihood {chosen!r}: {hint}")
        check_needs(chosen, LIKELIHOODS[chosen], options)
        chosen = LIKELIHOODS[chosen](**options)
    if isinstance(chosen, type) or not callable(chosen):
        kind = chosen.__name__ if isinstance(chosen, type) else "Gaussian"
        if (meant := _MEANT.get(_plain(kind))) is not None and meant in LIKELIHOODS and kind != "Gaussian":
            raise ValueError(f"The likelihood is {chosen!r}; write likelihood={meant!r}, its likelihood.")
        fault = f"The likelihood is {chosen!r}; give a name ({', '.join(LIKELIHOODS)}), an instance such as"
        raise ValueError(f"{fault} {kind}(...), or a function (outputs, targets) -> nll [B].")
    if isinstance(chosen, _Loss) and chosen.reduction != "none":
        kind = type(chosen).__name__
        meant = _MEANT.get(_plain(kind))
        known = "" if meant is None else f"likelihood={meant!r}, its likelihood, or "
        raise NetworkError(
            f"nn.{kind}(reduction={chosen.reduction!r}) returns one number for all examples; write {known}"
            f'likelihood=nn.{kind}(reduction="none"), which returns one for each.'
        )
    if not isinstance(chosen, Likelihood):
        name = f"own {getattr(chosen, '__name__', type(chosen).__name__)}"
        chosen = OwnLikelihood(chosen)
    else:
        other = f"own {type(chosen).__name__}"
        name = next((n for n, kind in LIKELIHOODS.items() if type(chosen) is kind), other)
    if average not in chosen.averages:
        raise ValueError(f"A {name} likelihood has no {average}; use average='logits', the mean output.")
    chosen.average = average
    return name, chosen


_MEANT = {  # by what other libraries call the loss
    **dict.fromkeys(
        ("crossentropy", "ce", "nll", "softmax", "sparsecategoricalcrossentropy"), "classification"
    ),
    **dict.fromkeys(("mse", "l2", "meansquarederror", "squarederror", "gaussiannll", "normal"), "gaussian"),
    **dict.fromkeys(("bce", "bcewithlogits", "binarycrossentropy", "multilabelsoftmargin"), "multilabel"),
    "poissonnll": "poisson",
}


def _plain(name: str) -> str:
    """``crossentropy`` of ``CrossEntropyLoss`` and of ``cross_entropy``."""
    return name.lower().replace("_", "").replace("-", "").removesuffix("loss")


def check_needs(name: str, kind: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse options among which one is missing that the likelihood called ``name`` cannot do without."""
    parameters = inspect.signature(kind).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if missing := [option for option in needed if option not in options]:
        build = getattr(kind, "__name__", name)
        remedy = f"give {build}({missing[0]}=...), or in YAML likelihood_options: {{{missing[0]}: ...}}"
        raise ValueError(f"The likelihood {name!r} needs {', '.join(missing)}; {remedy}.")


def average_samples(outputs: Tensor, how: str) -> Tensor:
    """Network outputs ``[B, S, K...]`` averaged over S: ``logits``, their mean (LILA); ``log_probabilities``,
    mean of log-softmax (Augerino), which is not normalised; ``probabilities``, log of the mean probability
    (last-layer marginal likelihood)."""
    if how == "logits":
        return outputs.mean(1) if outputs.shape[1] > 1 else outputs.sum(1)  # which is one operation less
    log_p = outputs.log_softmax(-1)
    if how == "log_probabilities":
        return log_p.mean(1)
    return torch.logsumexp(log_p, 1) - math.log(outputs.shape[1])


def shaped(name: str, targets: Tensor, outputs: Tensor) -> Tensor:
    """``targets`` in the shape of ``outputs``, ``[B, ...]``; dimensions of 1 may be more or fewer."""
    shape, wanted = ([n for n in of.shape if n != 1] for of in (targets, outputs))
    if shape != wanted:
        raise ValueError(
            f"{name} takes a target for each output, got outputs {list(outputs.shape)} and targets "
            f"{list(targets.shape)}; change the network's last layer or the layout of the targets."
        )
    return targets.reshape(outputs.shape)


def positive(name: str, value: Any) -> float:
    """``value``, if it is a number above 0."""
    if isinstance(value, (int, float)) and value is not True and math.isfinite(value) and value > 0:
        return value
    raise ValueError(f"The option {name} of a likelihood is a number above 0, got {value!r}.")


def whole(name: str, value: Any, least: int | None = None) -> int:
    """``value``, if it is a whole number, and at least ``least``."""
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"The option {name} of a likelihood is a whole number{bound}, got {value!r}.")
    return value


def flag(name: str, value: Any) -> bool:
    """``value``, if it is true or false."""
    if type(value) is not bool:
        raise ValueError(f"The option {name} of a likelihood is true or false, got {value!r}.")
    return value


@LIKELIHOODS.register("from_model")
class FromModel(Likelihood):
    """The network is called with the targets too, and what it returns is minimised: ``.loss``, ``["loss"]``,
    the only scalar of a tuple, or all of it; a mean over rows, or one number per row ``[B * S]``. Predictions
    are made without targets."""

    def forward(self, outputs: Tensor, targets: Any) -> Tensor:
        fault = "The network computes its loss itself, so that there is none of its outputs"
        raise ValueError(f"{fault}; use Task.loss.")

    def hits(self, outputs: Tensor, targets: Any) -> Tensor | None:
        classes = isinstance(targets, Tensor) and targets.ndim == 1 and not targets.is_floating_point()
        return outputs.argmax(1) == targets if classes and outputs.ndim == 2 else None
