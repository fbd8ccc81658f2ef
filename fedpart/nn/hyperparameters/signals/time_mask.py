"""A stretch of time that is masked."""

from fedpart.nn.hyperparameters.base import TRANSFORMS
from fedpart.nn.hyperparameters.signals.axis_mask import AxisMask


@TRANSFORMS.register("time_mask")
class TimeMask(AxisMask):
    """SpecAugment's mask over time, the last axis: of ``[rows, (channels,) frequency, time]``.

    Signals ``[rows, channels, time]`` will do as well. Arguments and errors are those of :class:`.AxisMask`.
    """

    axis = -1
