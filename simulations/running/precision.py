"""precision: auto: the precision and memory format of which this machine has units."""

from pathlib import Path

import torch

from simulations.config.load import AnyConfig
from simulations.folders.run_directory import CONFIG, saved_config


def choose_precision(config: AnyConfig, folder: str | Path) -> AnyConfig:
    """``config`` with a choice in place of ``precision: auto``: that of runs in ``folder``, if any.

    Else bf16 where the device multiplies in it, and channels last where the execution can. It follows from
    the machine alone: measured times of a step would differ from start to start, and with them the digits.
    """
    if config.precision != "auto":
        return config
    files = sorted(Path(folder).glob(f"**/{CONFIG}"))
    earlier = saved_config(files[0].parent) if files else None
    usual = "bf16" if multiplies_bf16(config.device) else "fp32"
    execution = getattr(config, "execution", "loop")
    may = execution != "grouped" and (execution != "auto" or config.device == "cpu")
    channels_last = may and (earlier is None or earlier.channels_last)
    choice = {"precision": usual if earlier is None else earlier.precision, "channels_last": channels_last}
    return type(config).from_dict(config.resolved() | choice)


def multiplies_bf16(device: str) -> bool:
    """Whether a device has units for products in bfloat16; elsewhere these are slower than in float32."""
    if torch.device(device).type == "cpu":
        return torch.cpu._is_avx512_bf16_supported()
    return device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
