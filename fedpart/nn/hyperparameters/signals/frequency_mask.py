"""A band of frequencies that is masked."""

from fedpart.nn.hyperparameters.base import TRANSFORMS
from fedpart.nn.hyperparameters.signals.axis_mask import AxisMask


@TRANSFORMS.register("frequency_mask")
class FrequencyMask(AxisMask):
    """SpecAugment's mask over frequencies, the last axis but one: of ``[rows, (channels,) frequency, time]``.

    Arguments and errors are those of :class:`.AxisMask`.
    """

    axis = -2
