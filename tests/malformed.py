"""Uploads that do not fit, drawn by hypothesis: each with the categories that may refuse it."""

import io
import json
import pickle
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body, get_object_body
from hypothesis import strategies as st

from fedpart.federated.wire import npy_bytes

EXECUTED = []  # what unpickling has run: nothing, ever
HEADER = ("version", "fingerprint", "round", "client", "chunk")
INT64 = st.integers(-(2**63), 2**63 - 1)
SCALAR = st.one_of(INT64, st.floats(), st.text(max_size=20), st.booleans(), st.binary(max_size=8))
NUMBER = st.one_of(INT64, st.floats(), st.lists(st.integers(0, 9), min_size=1, max_size=3))


def explode(text):
    EXECUTED.append(text)


class Bomb:
    """Says so when it is unpickled."""

    def __reduce__(self):
        return explode, ("unpickled",)


class Malformed(NamedTuple):
    """``apply`` changes a valid reply's content in place; ``categories``: of the refusals that may follow."""

    name: str
    apply: Callable[[RecordDict], None]
    categories: set[str]


def array(values):
    return Array(str(values.dtype), values.shape, "numpy.ndarray", npy_bytes(values))


def declared(data, dtype, shape):
    """What says that it has this dtype and shape, and has these bytes."""
    stream = io.BytesIO()
    header = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return Array(dtype, shape, "numpy.ndarray", stream.getvalue() + data.tobytes())


def with_values(change):
    def apply(content):
        name = "psi" if "psi" in content["arrays"] else "w"
        content["arrays"][name] = array(change(content["arrays"][name].numpy()))

    return apply


def with_data(data, stype="numpy.ndarray"):
    def apply(content):
        old = content["arrays"]["w"]
        content["arrays"]["w"] = Array(old.dtype, old.shape, stype, data(old.data))

    return apply


def objects(data):
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()], dtype=object), allow_pickle=True)
    return stream.getvalue()


def huge(data):
    """Declares far more numbers than it has."""
    return declared(np.frombuffer(data[-16:], np.uint8), "<f4", (10**12,)).data


def header(name, value):
    def apply(content):
        config = content["config"]
        same = type(value) is type(config[name]) and value == config[name]
        config[name] = "other" if same else value

    return Malformed(f"header {name}", apply, {name, "malformed"})


def missing_field(name):
    return Malformed(f"no {name}", lambda content: content["config"].pop(name), {"malformed"})


def metric(name, value):
    def apply(content):
        content["metrics"][name] = value

    return Malformed(f"metric {name}", apply, {"malformed", name})


def poisoned(place, value):
    def change(values):
        values = values.copy()
        values[place % len(values)] = value
        return values

    category = "too_large" if abs(value) < np.inf else "not_finite"
    return Malformed("value", with_values(change), {category})


def resized(count):
    def change(values):
        return np.resize(values, count + (count >= len(values)))

    return Malformed("length", with_values(change), {"size"})


def recast(dtype):
    return Malformed(f"dtype {dtype}", with_values(lambda values: values.astype(dtype)), {"dtype"})


def truncated(keep):
    return Malformed("truncated", with_data(lambda data: data[: keep % len(data)]), {"malformed", "size"})


def junk(data):
    return Malformed("junk", with_data(lambda _: data), {"malformed"})


def foreign(stype):
    return Malformed("form", with_data(lambda data: data, stype or "?"), {"malformed"})


def forge(thing, body):
    """Change, in place, the body with which an object of Flower's travels; its head and hash stay right."""
    kind = type(thing)

    class Forged(kind):
        def deflate(self):
            return add_header_to_object_body(body(get_object_body(kind.deflate(self), kind)), self)

    Forged.__qualname__ = kind.__qualname__
    thing.__class__ = Forged


def forged(name, body):
    """Another body of the object at a path; the content's own is empty."""

    def apply(content):
        thing = content
        for part in name:
            thing = thing[part]
        forge(thing, body)

    return Malformed(f"object {'/'.join(name)}", apply, {"malformed"})


def metadata(**changes):
    """Other values of what the object of an array says of it."""
    return forged(("arrays", "w"), in_json(lambda told: {**told, **changes}))


def in_json(change):
    """Changes of a body that is JSON."""
    return lambda body: json.dumps(change(json.loads(body))).encode()


def renamed(name):
    def apply(content):
        held = content["arrays"]
        held["_" + name] = held.pop("w")

    return Malformed("renamed", apply, {"partitions"})


def extra(name):
    def apply(content):
        content["arrays"]["_" + name] = content["arrays"]["w"]

    return Malformed("extra array", apply, {"partitions"})


def replaced(record, by):
    def apply(content):
        if isinstance(content[record], by):
            del content[record]
        else:
            content[record] = by()

    return Malformed(f"record {record}", apply, {"malformed"})


FIXED = [
    Malformed("empty", lambda content: content.clear(), {"malformed"}),
    Malformed("objects", with_data(objects), {"size", "dtype"}),
    Malformed("pickle", with_data(lambda _: pickle.dumps(Bomb())), {"malformed"}),
    Malformed("pickle by its name", with_data(lambda _: pickle.dumps(Bomb()), "pickle"), {"malformed"}),
    Malformed("huge", with_data(huge), {"size"}),
    Malformed("two dimensions", with_values(lambda values: values[None]), {"size", "malformed"}),
    metadata(arraychunk_ids=[0] * 10**5),  # a reply of a few hundred kilobytes becomes one of many megabytes
    metadata(arraychunk_ids=[1]),
    metadata(shape=[2**70]),
    metadata(dtype="\ud800"),
    forged(("arrays",), in_json(lambda told: {str(i): one for i in range(99) for one in told.values()})),
    forged((), in_json(lambda told: {**told, "more": "0" * 64})),
    Malformed("longer", with_data(lambda data: data + b"\0"), {"size"}),
    *map(recast, ["float64", "float16", ">f4", "int32", "uint8", "bool", "complex64"]),
]
TOO_LARGE = st.floats(2e15, 1e30) | st.sampled_from([np.nan, np.inf, -np.inf, -1e38])
WRONG_EXAMPLES = NUMBER.filter(lambda value: not (type(value) is int and 1 <= value <= 1000))
WRONG_LOSS = NUMBER.filter(lambda value: not (type(value) is float and abs(value) <= 1e15))

OBJECTS = st.sampled_from([(), ("arrays",), ("arrays", "w"), ("config",), ("metrics",)])
RECORDS = st.sampled_from([ArrayRecord, ConfigRecord, MetricRecord])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=5,
)

MALFORMED = st.one_of(
    st.sampled_from(FIXED),
    st.builds(header, st.sampled_from(HEADER), SCALAR),
    st.builds(missing_field, st.sampled_from(HEADER)),
    st.builds(metric, st.just("examples"), WRONG_EXAMPLES),
    st.builds(metric, st.just("loss"), WRONG_LOSS),
    st.builds(poisoned, st.integers(0, 10**6), TOO_LARGE),
    st.builds(resized, st.integers(0, 40)),
    st.builds(truncated, st.integers(0, 10**6)),
    st.builds(junk, st.binary(max_size=60)),
    st.builds(foreign, st.text(max_size=10).filter(lambda text: text != "numpy.ndarray")),
    st.builds(lambda name, body: forged(name, lambda _: body), OBJECTS, st.binary(max_size=60)),
    st.builds(lambda name, value: forged(name, lambda _: json.dumps(value).encode()), OBJECTS, JSON),
    st.builds(renamed, st.text(max_size=10)),
    st.builds(extra, st.text(max_size=10)),
    st.builds(replaced, st.sampled_from(["arrays", "config", "metrics"]), RECORDS),
)
