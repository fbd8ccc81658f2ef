"""What transforms and layers with hyperparameters refuse: options, and inputs of another kind."""

import math
from functools import partial

import refusals
import torch
from test_lora import Adapted
from torch import nn

from fedpart import (
    AffineAugmentation,
    ColourJitter,
    ConcreteDropout,
    ConcreteMask,
    Cutout,
    FixedMask,
    FrequencyMask,
    GaussianBlur,
    InputNoise,
    RandomFlip,
    TimeMask,
    TimeShift,
    TokenDropout,
    fold_lora,
    learn_lora,
)
from fedpart.nn.hyperparameters.base import check_softness

FAMILIES = "Unknown affine family 'lie'; choose one of minmax, centred, schwobel, symmetric, aug"
SEVEN = r"minmax family starts from one number or 7 \(angle, .*\), got 6"
NOTHING = "changes nothing: give a number for one of brightness, contrast"
OUTSIDE = "Unknown outside 'wrap' of a signal; choose one of zeros, border"
SOFT = "softness of an edge is positive"
RATE = "strictly between 0 and 1"
NO_NOISE = "is positive, got .*leave the noise out for 0"


def test_options():
    refusals.check(
        (f"{kind.__name__}({options})", partial(kind, **options), says)
        for kind, options, says in [
            (AffineAugmentation, {"family": "lie"}, FAMILIES),
            (AffineAugmentation, {"padding": "wrap"}, "Unknown padding 'wrap'"),
            (AffineAugmentation, {"family": "minmax", "initial": [0.1] * 6}, SEVEN),
            (AffineAugmentation, {"family": "augerino", "initial": [0.1] * 7}, "from one number or 6"),
            (AffineAugmentation, {"family": "lila", "initial": {"rotation": 1.0}}, "no 'rotation': .*angle"),
            (ColourJitter, dict.fromkeys(("brightness", "contrast", "saturation", "hue")), NOTHING),
            (ColourJitter, {"hue": math.nan}, "range of hue starts from a finite number, got nan"),
            (ConcreteDropout, {"rate": 0.0}, f"{RATE}, got 0.0; leave the layer out for 0"),
            (ConcreteDropout, {"rate": 1.0}, RATE),
            (ConcreteDropout, {"rate": math.nan}, RATE),
            (ConcreteDropout, {"temperature": 0.0}, "of a relaxation is positive, got 0.0"),
            (Cutout, {"softness": 0.0}, SOFT),
            (Cutout, {"side": math.nan}, "finite fraction of the image, got nan"),
            (FrequencyMask, {"softness": -1.0}, SOFT),
            (FrequencyMask, {"width": math.inf}, "finite fraction of its axis, got inf"),
            (GaussianBlur, {"sigma": math.inf}, "finite number of pixels, got inf"),
            *((GaussianBlur, {"kernel_size": n}, f"odd size of at least 3, got {n}") for n in (1, 4, 0, -3)),
            *((InputNoise, {"std": std}, NO_NOISE) for std in (0.0, -1.0, math.nan, math.inf)),
            (RandomFlip, {"probability": 0.0}, f"{RATE}, got 0.0; leave the flip out for 0"),
            (RandomFlip, {"probability": math.nan}, RATE),
            (RandomFlip, {"axis": "diagonal"}, "Unknown axis 'diagonal' .*; choose one of horizontal, ver"),
            (RandomFlip, {"temperature": 0.0}, "temperature of a relaxation is positive, got 0.0"),
            (TimeMask, {"softness": -1.0}, SOFT),
            (TimeMask, {"width": math.inf}, "finite fraction of its axis, got inf"),
            (TimeShift, {"outside": "wrap"}, OUTSIDE),
            (TimeShift, {"reach": math.nan}, "finite fraction of the signal, got nan"),
            *((check_softness, {"softness": s}, f"{SOFT}, got") for s in (0.0, -1.0, math.nan, math.inf)),
        ]
    )


def test_masks():
    entries = "mask has 3 entries, but there are 5 features; give one 0 or 1 for each"
    whole = "whole number of features or one 0 or 1 for each, got"
    rows = [
        (f"{kept} of {features}", partial(FixedMask, features, kept), says)
        for features, kept, says in [
            (5, [1, 0, 1], entries),
            (5, [0] * 5, "keeps none of the 5 features; set at least one entry to 1"),
            (5, 0, "keeps the first 1 to 5 of 5 features, got 0"),
            (5, 6, "keeps the first 1 to 5 of 5 features, got 6"),
            (3, [1, 2, 0], "0 or 1, but entry 1 is 2"),
            (3, [1, 0.5, 0], "0 or 1, but entry 1 is 0.5"),
            (3, [1, math.nan, 0], "0 or 1, but entry 1 is nan"),
            (3, 2.5, f"{whole} 2.5"),
            (3, True, f"{whole} True"),
            (0, 1, "at least one feature, got 0"),
        ]
    ]
    rows += [
        (f"concrete {options}", partial(ConcreteMask, **{"features": 3, **options}), says)
        for options, says in [
            ({"features": 0}, "at least one feature, got 0"),
            ({"probability": 0.0}, f"{RATE}, got 0.0; use FixedMask"),
            ({"probability": 1.0}, f"{RATE}, got 1.0"),
            ({"probability": math.nan}, f"{RATE}, got nan"),
            ({"temperature": 0.0}, "temperature of a relaxation is positive, got 0.0"),
            ({"temperature": math.inf}, "temperature of a relaxation is positive, got inf"),
        ]
    ]
    rows += [
        (f"{type(mask).__name__} of {shape}", partial(mask, torch.ones(shape)), r"5 .* \[rows, 5\], got \[")
        for mask in (FixedMask(5, 3), ConcreteMask(5))
        for shape in ((2, 4), (2, 6), (5,), (2, 1, 5))
    ]
    refusals.check(rows)


def test_inputs():
    images, spectrograms = r"images \[rows, channels, height, width\], got", "takes spectrograms .*got"
    no_gradient = "with 3 channels, not {}; leave them out: .*options: {{saturation: null, hue: null}}"
    rows = [
        (AffineAugmentation(), torch.zeros(5, 4), rf"takes {images} \(5, 4\)"),
        (ColourJitter(), torch.ones(3, 5, 7), rf"{images} \(3, 5, 7\)"),
        (Cutout(), torch.ones(2, 5), rf"{images} \(2, 5\)"),
        (FrequencyMask(), torch.ones(3, 5), rf"FrequencyMask {spectrograms} \(3, 5\)"),
        (GaussianBlur(), torch.ones(2, 5), rf"{images} \(2, 5\)"),
        (InputNoise(), torch.ones(2, 3).long(), r"floating-point inputs, got torch\.int64; put it behind"),
        (RandomFlip(), torch.ones(2, 5), rf"{images} \(2, 5\)"),
        (TimeMask(), torch.ones(3, 5), rf"TimeMask {spectrograms} \(3, 5\)"),
        (TimeShift(), torch.ones(2, 5), r"\[rows, channels, time\], got \(2, 5\); .*unsqueeze\(1\)"),
        (TokenDropout(), torch.ones(2, 3), r"features\], got \(2, 3\); put it behind the embed"),
    ]
    for part in ("saturation", "hue"):
        others = dict.fromkeys({"brightness", "contrast", "saturation", "hue"} - {part})
        jitter = ColourJitter(**{part: 0.1}, **others)
        rows += [(jitter, torch.rand(6, n, 5, 7), no_gradient.format(n)) for n in (1, 4)]
    refusals.check(
        (f"{n}, {type(kind).__name__}", partial(kind, x), says) for n, (kind, x, says) in enumerate(rows)
    )


def test_lora():
    once = "adapter 'default' of '0' has a LoraGate; call learn_lora once"
    none = {"scale": False, "dropout": None}
    gated, variant = learn_lora(nn.Sequential(Adapted(5, 8))), Adapted(5, 8)
    variant.lora_variant = {"default": "DoRA"}
    merged, disabled = Adapted(5, 8), Adapted(5, 8)
    merged.merged_adapters, disabled.disable_adapters = ["default"], True
    refusals.check(
        (says, partial(function, nn.Sequential(network), **options), says)
        for function, network, options, says in [
            (learn_lora, nn.Linear(2, 2), {}, r"no LoRA adapters, .*peft\.get_peft_model"),
            (learn_lora, variant, {}, "adapter 'default' of '0' is a variant .*use_dora=False"),
            (learn_lora, merged, {}, r"is merged or disabled, .* call unmerge_adapter\(\) or enable"),
            (learn_lora, disabled, {}, "adapter 'default' of '0' is merged or disabled"),
            (learn_lora, gated[0], {}, once),
            (learn_lora, Adapted(5, 8), none, "nothing to learn: give scale=True, or"),
            (learn_lora, Adapted(5, 8), {"dropout": 1.0}, f"{RATE}, got 1.0"),
            (fold_lora, Adapted(5, 8), {}, "no LoraGate to fold; learn_lora puts one in"),
        ]
    )
