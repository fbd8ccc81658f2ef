"""What the messages between server and clients must not hold."""

import math
from functools import partial

import numpy as np
import pytest
import refusals
from flower_experiment import build
from problems import AtRound

from fedpart import Federation
from fedpart.engines.executor import Executor
from fedpart.federated.wire import Header, decode_jobs, decode_update, encode_update
from fedpart.updates.errors import Refusal


@pytest.fixture(scope="module")
def agreed():
    """The protocol that both sides have."""
    return build({}).protocol


def test_jobs_and_headers(agreed):
    header = Header.of(agreed, 3, 1)
    jobs = ("", "{}", "[1]", '[{"subnetwork": "1"}]', '[{"code": "x"}]', None, 3)
    types = ({"round": "1"}, {"round": True}, {"client": 1.0}, {"fingerprint": 5})
    others = {"version": 99, "round": 4, "client": 2, "chunk": 7, "fingerprint": "0"}

    def checked(**change):
        header.check(Header.read({**header.scalars(), **change}))

    checked()
    refusals.check(
        (f"jobs {text!r}", partial(decode_jobs, text), ValueError, "not a (list of )?job") for text in jobs
    )
    long = ("x" * 10**5, "[" * 10**5, f'[{{"code": "{"x" * 10**5}"}}]', f'[{{"psi": "{"x" * 10**5}"}}]')
    refusals.check((text[:9], partial(decode_jobs, text), ValueError, "^.{20,400}$") for text in long)
    says = "the {} in its header is .*, not of"
    refusals.check(
        (str(change), partial(checked, **change), Refusal, says.format(*change)) for change in types
    )
    refusals.check(
        (name, partial(checked, **{name: wrong}), Refusal, f"its {name} is .* where .* is expected")
        for name, wrong in others.items()
    )
    missing = "the version in its header is missing"
    refusals.check([("an empty header", partial(Header.read, {}), ValueError, missing)])


def test_updates(agreed):
    experiment = build({})
    client = next(c for c in range(agreed.settings.clients) if agreed.chunk(c) == 2)
    federation, jobs = Federation(agreed), agreed.plan(client, 1)
    executor = AtRound(Executor(agreed), 1, federation.w, federation.psi)
    arrays = encode_update(executor.run(client, experiment.shards[client], jobs))
    w, psi = arrays["w"], arrays["psi"]
    scalars = {"examples": 3, "loss": 0.5, "unseen_loss": 0.7}

    def decoded(arrays=arrays, **changes):
        known = {name: value for name, value in {**scalars, **changes}.items() if value is not None}
        return partial(decode_update, arrays, known, agreed, client, jobs)

    def replaced(place, value):
        array = w.copy()
        array[place] = value
        return array

    decoded()()
    unasked, number = "it holds the arrays", "no integer and real number"
    unseen, visited = "unseen_loss is .*, no real number", "visited and seconds are .*, no integer and number"
    refusals.check(
        (f"{what}: {says}", call, Refusal, says)
        for what, call, says in [
            ("a number less", decoded({**arrays, "w": w[:-1]}), "w has shape"),
            ("a number more", decoded({**arrays, "w": np.append(w, w[:1])}), "w has shape"),
            ("a matrix", decoded({**arrays, "w": w[None]}), "w has shape"),
            ("float64", decoded({**arrays, "w": w.astype("f8")}), "w has dtype float64 where float32"),
            ("float16", decoded({**arrays, "w": w.astype("f2")}), "w has dtype float16"),
            ("other bytes first", decoded({**arrays, "w": w.astype(">f4")}), "w has dtype >f4"),
            ("a NaN", decoded({**arrays, "w": replaced(3, np.nan)}), "w_2 has values"),
            ("an infinity", decoded({**arrays, "w": replaced(-1, np.inf)}), "w_3 has values"),
            ("a psi less", decoded({**arrays, "psi": psi[1:]}), "psi has shape"),
            ("a psi of NaN", decoded({**arrays, "psi": psi * np.float32("nan")}), "psi gradient has values"),
            ("no psi", decoded({"w": w}), unasked),
            ("an array more", decoded({**arrays, "more": psi}), unasked),
            ("no arrays", decoded({}), unasked),
            ("no scalars", decoded(examples=None, loss=None, unseen_loss=None), number),
            ("no examples", decoded(examples=0), "it claims 0 examples"),
            ("half an example", decoded(examples=2.0), number),
            ("a NaN as loss", decoded(loss=math.nan), "its training loss is not finite"),
            ("no unseen loss", decoded(unseen_loss=None), unseen),
            ("a whole unseen loss", decoded(unseen_loss=1), unseen),
            ("an infinite unseen loss", decoded(unseen_loss=math.inf), "unseen examples is not finite"),
            ("a list as loss", decoded(unseen_loss=[0.1]), unseen),
            ("half a visit", decoded(visited=2.0, seconds=0.1), visited),
            ("a word as seconds", decoded(visited=2, seconds="0.1"), visited),
            ("many visits", decoded(visited=10**16, seconds=0.1), "visited is 1.*not between"),
        ]
    )
