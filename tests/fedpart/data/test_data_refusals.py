"""What data in memory, their changes and their recipes refuse; for files see test_data_*_refusals.py."""

import math
from functools import partial

import numpy as np
import refusals
import torch

from fedpart.data import (
    SPLITS,
    Dataset,
    Splits,
    angle_bins,
    by_client,
    check_shards,
    divide_clients,
    input_selection,
    load_splits,
    normalised,
    random_subset,
    rotate,
    rotated,
)
from fedpart.data.sets.synthetic import topics
from fedpart.data.splitting.parts import of_classes
from fedpart.data.transformed import corrupted

LABELS = torch.tensor([0, 1, 2])
NOT_CALLABLE = "text"
IMAGES, GREY, TABLE = (Dataset(torch.rand(3, *shape), LABELS) for shape in ((3, 6, 6), (1, 6, 6), (4,)))
NUMBERS = Dataset(torch.zeros(2, 1), torch.zeros(2, 1))
CLIENTS = Dataset(torch.zeros(12, 1), torch.zeros(12).long(), clients=torch.arange(12) % 3)


def numbered(n):
    return Dataset(torch.zeros(n, 1, 2, 2), torch.arange(n))


def three_classes(data_dir):
    return Splits(numbered(6), numbered(6), numbered(6), num_classes=3)


def one_class(data_dir):
    return Splits(*[Dataset(torch.zeros(3, 1), torch.zeros(3).long())] * 3, num_classes=1)


def not_a_loader(data_dir):
    return [1, 2, 3]


def test_data_sets():
    two, three = torch.zeros(2), torch.zeros(3, 2)
    holes = torch.tensor([[0.0], [math.nan], [math.inf]])
    missing = torch.tensor([0.0, math.nan])
    sizes = {"a": three, "b": [two]}
    refusals.check(
        (what, partial(Dataset, *tensors), says)
        for what, tensors, says in [
            ("more targets than inputs", (three, torch.arange(4)), "differ in length"),
            ("fewer groups than inputs", (three, LABELS, two), "differ in length"),
            ("inputs that are not finite", (holes, LABELS), "in 2 of 3 examples"),
            ("targets that are NaN", (two, missing), "targets hold NaN"),
            ("groups that are NaN", (two, LABELS[:2], missing), "groups hold NaN"),
            ("groups of integers", (two, LABELS[:2], LABELS[:2]), "floating point"),
            ("a negative label", (three, LABELS - 1), r"got -1; .* 0, or make targets.float\(\) of numb"),
            ("truths", (three, LABELS > 0), r"must be \[n\] integers"),
            ("inputs of two lengths", (sizes, torch.zeros(3)), r"inputs\['b'\]\[0\]\": 2"),
            ("bytes in a dict", ({"a": three.byte()}, torch.zeros(3)), r"inputs\['a'\] are torch.uint8"),
            ("bytes", (three.byte(), LABELS), "float32 for images"),
            ("a number", (torch.tensor(1.0), torch.tensor(1)), "one entry per example"),
            ("clients below 0", (three, LABELS, None, None, -LABELS), "number them from 0"),
        ]
    )
    array = partial(Dataset, np.zeros((3, 2)), torch.zeros(3))
    refusals.check([("an array", array, TypeError, "inputs must be a torch tensor, got ndarray")])


def test_splits_and_their_classes():
    four, six = numbered(4), numbered(6)
    outside = r"2 of 6 labels of the test set lie outside the 4 classes 0\.\.3 .* is 5\)"
    rows = [
        ("labels above the classes", lambda: Splits(four, four, six, 4), outside),
        ("no training set", lambda: Splits(six.subset([]), six, six, 6), "training set is empty"),
        ("more names than classes", lambda: Splits(*[numbered(2)] * 3, 2, ("a", "b", "c")), "3 names for 2"),
        ("numbers", lambda: of_classes(Splits(*[NUMBERS] * 3, 1), [0]), "whose targets are labels"),
    ]
    some = r"classes are some of 0\.\.9, each once, got .*at least two"
    rows += [
        (f"the classes {classes}", partial(load_splits, "digits", classes=classes), some)
        for classes in ([], [3], [3, 3], [3, 10], [-1, 3], ["7", "3"], [True, 3])
    ]
    refusals.check(rows)


def test_loaders_by_name():
    wide = r"3 of 6 labels of the train set .* the 3 classes.*targets\.float"
    refusals.check(
        (name, partial(load_splits, name), error, says)
        for name, error, says in [
            (f"{__name__}:three_classes", ValueError, wide),
            (f"{__name__}:one_class", ValueError, "one_class' has one class, .* examples of another"),
            (f"{__name__}:not_a_loader", TypeError, "returned list; its loader must return"),
            (f"{__name__}:NOT_CALLABLE", ValueError, "is a str, and no data set"),
            ("digit", ValueError, "did you mean 'digits'"),
        ]
    )


def test_data_that_are_drawn_or_changed():
    inputs = "at least one input, got n="
    shares = "0 or more and strays between 0 and 1, got"
    points = "points must lie between 1 and the 3"
    flat, angles = torch.zeros(2, 4, 4), "one angle per image"
    rows = [
        ("a subset of none", lambda: random_subset(GREY, 0, 0), points),
        ("a subset of more than all", lambda: random_subset(GREY, 4, 0), points),
        ("fewer than no inputs", lambda: input_selection(-1, seed=0), inputs),
        ("inputs of no numbers", lambda: input_selection(5, seed=0, informative=0, spurious=0), inputs),
        ("negative spurious numbers", lambda: input_selection(5, seed=0, spurious=-1), inputs),
        ("fewer than no texts", lambda: topics(-1, 0, 0.1), shares),
        ("a share of strays above 1", lambda: topics(2, 0, 1.5), shares),
        ("an unknown corruption", lambda: corrupted(IMAGES, "fog", 1), "severities 1 to 5, got 'fog' at 1"),
        ("rows to corrupt", lambda: corrupted(TABLE, "contrast", 1), "Only images"),
        ("more angles than images", lambda: rotate(flat[:, None], torch.zeros(3)), angles),
        ("images without channels to turn", lambda: rotate(flat, torch.zeros(2)), angles),
        ("a turn in degrees", lambda: rotated(IMAGES, seed=1, max_angle=180.0), "radians"),
    ]
    rows += [
        (f"the normalisation of {what}", partial(normalised, data, mean, std), says)
        for what, data, mean, std, says in [
            ("three channels by one", IMAGES, [0.5], [0.5], "1 means and 1 deviations, but .* 3 channels"),
            ("one channel by two", GREY, [0.5], [0.5, 0.5], "1 means and 2 deviations, but .* 1 channels"),
            ("no deviation", GREY, [0.5], [0.0], "deviations above 0"),
            ("a NaN", GREY, [math.nan], [1.0], "finite means"),
            ("rows", TABLE, [0.5], [0.5], "Only images"),
        ]
    ]
    refusals.check(rows)


def test_recipes():
    dirichlet = ["per_client", "per_client_shares", "per_client_subset", "per_client_total", "per_label"]
    labels = np.arange(50) % 10
    angles = np.linspace(-3, 3, 50)
    rows = [
        (f"{name} for {n}", partial(SPLITS[name], labels[:10], n, 0.1, 0), f"{n} clients cannot share 10")
        for name in ("iid", *dirichlet)
        for n in (0, 11)
    ]
    rows += [
        (f"{name} with alpha {alpha}", partial(SPLITS[name], labels, 10, alpha, 0), "finite number above 0")
        for name in dirichlet
        for alpha in (0.0, -1.0, math.nan, math.inf)
    ]
    rows += [
        (f"bins of the angle {angle}", partial(angle_bins, [0.0, angle]), "convert degrees")
        for angle in (90.0, math.nan, -3.3)
    ]
    rows += [
        ("angles as groups", lambda: SPLITS["per_label"](angles, 10, 0.1, 0), "angle_bins"),
        ("no bins", lambda: angle_bins([0.0], bins=0), "bins must be 1 or more"),
    ]
    refusals.check(rows)


def test_shards_of_a_recipe():
    refusals.check(
        (says, partial(check_shards, shards, 10, 3, "mine:deal"), f"^The split 'mine:deal' {says}")
        for shards, says in [
            (None, "returned NoneType; it must return a list of example indices for every client"),
            ([[0, 1], [2]], "made 2 shards for 3 clients"),
            ([[0], [], [1]], "gives client 1 no examples"),
            ([[0], [1], [2, 10]], "gives client 2 the example 10, but there are 10, numbered 0 to 9"),
            ([[0], [-1], [2]], "gives client 1 the example -1, but"),
            ([[0, 4], [1], [5, 4]], "gives client 2 the example 4, which client 0 has"),
            ([[0], [3, 3], [1]], "gives client 1 an example twice"),
            ([[0], [1.0], [2]], r"gives client 1 float64 \[1\]; it must give \[n\] integers"),
            ([np.arange(10) == i for i in range(3)], r"gives client 0 bool \[10\]"),
        ]
    )


def test_clients_that_the_data_know():
    eight = torch.arange(8) % 2
    rows = [
        (f"{share} held out by {how}", partial(divide_clients, eight, share, how), says)
        for share, how, says in [
            (3, "random", "a share below 1"),
            (0.2, "last_of_class", "hold_out is one of random, last, clients"),
            (0.9, "clients", "Of 2 clients 2 cannot be held out"),
            (0.1, "random", "No client has enough examples"),
        ]
    ]
    other_count = "examples of 3 clients, but clients is 5; set clients: 3"
    rows += [
        ("5 clients for 3", lambda: SPLITS["natural"](CLIENTS.clients, 5, 0.1, 0), other_count),
        ("an eighth", lambda: by_client(CLIENTS, torch.tensor([0, 7])), "Client 7 has none of these 12"),
        ("data without clients", lambda: by_client(TABLE), "does not know its clients"),
    ]
    refusals.check(rows)


def test_tensors_of_which_no_rows_can_be_taken():
    x = torch.rand(3, 4)
    jagged = torch.nested.nested_tensor([x[:1], x[:2], x], layout=torch.jagged)
    refusals.check(
        (what, partial(Dataset, inputs, LABELS), *error, says)
        for what, inputs, *error, says in [
            ("sparse", x.to_sparse(), r"inputs is a tensor of layout sparse_coo; make it dense"),
            ("rows", x.to_sparse_csr(), "layout sparse_csr"),
            ("in a tree", {"a": x, "b": x.to_sparse()}, r"inputs\['b'\] is a tensor of layout"),
            ("jagged", jagged, "a nested tensor; pad its rows to one length"),
            ("meta", x.to("meta"), "without values, on the device meta"),
            ("quantised", torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), "dequantize"),
            ("text", ["a", "b", "c"], TypeError, "got str; make numbers of text"),
        ]
    )
    sparse = partial(Dataset, x, LABELS.to_sparse())
    refusals.check([("targets", sparse, "targets is a tensor of layout sparse_coo")])
