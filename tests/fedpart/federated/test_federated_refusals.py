"""What the settings of a federation and its protocol must not be."""

import math
from functools import partial

import numpy as np
import pytest
import refusals
from flower_experiment import build
from problems import augmentation, chain_net, settings, smooth_net
from tiny import tiny

from fedpart import AdamWSettings, ClipSettings, Federation, LocalSettings, PrivacySettings, Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.federated.clients import assigned_chunks
from fedpart.federated.wire import Header, decode_jobs, decode_update, encode_update
from fedpart.methods.partitioned import Partitioned
from fedpart.task.gradients import Job
from fedpart.updates.errors import Refusal
from simulations.config.load import ConfigError

UNIFORM = {"weighting": "uniform"}
CLIP = ClipSettings((3.0, 2.0, 1.0), 0.5)
PRIVATE = {**UNIFORM, "chunks": (0.5, 0.25, 0.25), "clip": CLIP, "privacy": PrivacySettings(1.0)}


def protocol(clients=8, task=None, **changes):
    return Protocol(task or Task(chain_net(), transforms=[augmentation()]), settings(clients, **changes))


def test_settings_of_a_federation():
    psi_optimiser = "server_psi is one of AdamSettings.*, SGDSettings.*, or a mapping .*, got 'sgd'"
    feedback = {"error_feedback": True}
    clipped = {**UNIFORM, "clip": ClipSettings(1.0), "privacy": PrivacySettings(1.0)}
    scored = {**clipped, "clip": ClipSettings(1.0, psi=1.0), "evaluation": "clients"}
    carried = "Privacy is spent round by round, but error_feedback carries"
    codec = "upload_options are {'share': 0.1}, but there is no upload codec"
    refusals.check_keywords(
        partial(settings, 8),
        [
            ({"chunks": (0.5, 0.4)}, r"chunk proportions must sum to 1, but \[0.5, 0.4\] sums to 0.9"),
            ({"chunks": [1 / 256] * 256}, "between 1 and 255 chunk proportions, got 256"),
            ({"parameters": (0.5, 0.5)}, "3 chunk proportions but 2 parameter proportions"),
            ({"parameters": (0.5, 0.3, 0.3)}, "parameter proportions must sum to 1"),
            ({"cohort": 0}, "cohort is at least 1, got 0"),
            ({"cohort": 9}, r"between 1 and the number of clients \(8\), got 9"),
            ({"weighting": "size"}, "weighting is one of examples or uniform, got 'size'"),
            ({"on_client_error": "retry"}, "on_client_error is one of fail or skip, got 'retry'"),
            ({"server": AdamWSettings()}, r"Adam or SGD, but server is AdamWSettings\(.*AdamSettings or SGD"),
            ({"server_psi": "sgd"}, psi_optimiser),
            ({"download": "int8"}, "download is one of fp16, bf16 or null, got 'int8'"),
            (feedback, "keeps what an upload codec loses, but there is none; set upload as well"),
            ({**feedback, **clipped, "upload": "topk"}, carried),
            ({"upload_options": {"share": 0.1}}, codec),
            (scored, "not covered by differential privacy"),
        ],
    )


def test_local_training():
    refusals.check_keywords(
        LocalSettings,
        [
            ({"batch_size": 0}, "batch_size is at least 1, got 0"),
            ({"epochs": 0}, "epochs is at least 1, got 0"),
            ({"learning_rate": 0.0}, "learning_rate is above 0, got 0.0"),
            ({"learning_rate": math.nan}, "learning_rate is finite and above 0, got nan"),
            ({"momentum": 1.0}, "momentum is at least 0 and below 1, got 1.0"),
            ({"weight_decay": -0.1}, "weight_decay is at least 0, got -0.1"),
            ({"decay_scaling": "x"}, "decay_scaling is one of reciprocal, square_root or none, got 'x'"),
            ({"psi_batch": "all"}, "psi_batch is 'shard' or a number of examples, got 'all'"),
            ({"psi_batch": 0}, "psi_batch is 'shard' or a number of examples, got 0"),
        ],
    )


def test_a_protocol():
    augmented = {"method_options": {"augment": True}}
    misspelt = {"method_options": {"augmented": True}, "method": "fedavg"}
    four = {"chunks": (0.25,) * 4, "clients": 3, "cohort": 2}
    refusals.check_keywords(
        protocol,
        [
            ({"method": "partitoned"}, "Unknown method 'partitoned': did you mean 'partitioned'"),
            ({"method": "nowhere:Method"}, "'nowhere:Method' cannot be imported .*PYTHONPATH"),
            ({"method": "fedpart.methods:Nothing"}, "cannot be imported"),
            (misspelt, r"augmented.*options are \(augment"),
            (augmented, r"'partitioned' does not take the options .*augment"),
            (four, "3 clients for 4 chunks"),
            ({"scheme": "rows"}, "Unknown partitioning scheme 'rows': .*Known: node, random"),
            ({"defaults": "random"}, "defaults is one of initial or zeros, got 'random'"),
            ({"parameters": (0.9994, 0.0003, 0.0003)}, "Partition 2 of 3 is empty in the whole model"),
            ({"method": "augerino", "task": Task(chain_net())}, "No transform of the task has widths"),
            ({"clip": ClipSettings((1.0, 2.0))}, "clip.weights has 2 norms for 3 partitions"),
        ],
    )
    few = "2 clients for 3 chunks; use at least one client per chunk"
    refusals.check(
        [
            ("a third chunk", lambda: assigned_chunks((0.5, 0.3, 0.2), 2, 0), ValueError, few),
            ("a client below 0", lambda: assigned_chunks((1.0,), 5, 0)[-1], IndexError, "start at 0, got -1"),
        ]
    )


class Heedless(Partitioned):
    """A method of one's own that knows no caps."""

    def plan(self, client):
        return [Job(j, j) for j in range(client.chunk, client.chunks + 1)]


def test_caps():
    half, mean = {1: 0.5, 3: 0.5}, Task(chain_net(dropout=False))
    heedless = f"{__name__}:Heedless"
    one_network = " has one network for all here; leave caps out"
    psi_only = {1: 0.7, 2: 0.1, 3: 0.2}  # of 20 clients, 4 in chunk 2 have the cap 1
    without_psi = "and 3 more of chunk 2 can compute nothing with a cap of 1: to train takes one of 2; give"
    with_psi = (
        "and 1 more of chunk 3 can compute nothing with a cap of 1: to train takes one of 3, and psi's "
        "gradient one of 2; give more clients larger caps"
    )
    nobody = "No client trains partition 2, which takes a chunk up to 2 and a cap of"
    refusals.check_keywords(
        partial(protocol, 20, cohort=6, chunks=(0.5, 0.3, 0.2)),
        [
            ({"caps": [0.4, 0.6]}, r"caps are shares of .* by cap, \{1: 0.4, 3: 0.6\} say, got \[0.4"),
            ({"caps": {0: 0.4, 3: 0.6}}, "there are 3 as there are chunks, got 0; use caps from 1 to 3"),
            ({"caps": {1: 0.4, 3: 0.5}}, r"shares of caps must sum to 1, but \[0.4, 0.5\] sums to 0.9"),
            ({"caps_by": "free"}, "caps_by is free, but there are no caps to deal; set caps as well"),
            ({"caps": {3: 1.0}, "caps_by": "size"}, "caps_by is one of chunk or free, got 'size'"),
            ({"caps": {1: 1.0}, "method": "fedavg"}, f"'fedavg'{one_network}"),
            ({"caps": {1: 1.0}, "method": "augerino"}, f"'augerino'{one_network}"),
            ({"caps": {1: 1.0}, "chunks": (1.0,)}, "or use method: partitioned with several chunks"),
            ({"caps": {1: 0.9, 3: 0.1}}, with_psi),
            ({"caps": half, "caps_by": "free"}, "cap of 1: .*; set caps_by: chunk, give more"),
            ({"caps": psi_only, "task": mean}, without_psi),
            ({"caps": {1: 0.8, 3: 0.2}}, nobody),
            ({"caps": {2: 1.0}}, "No client trains partition 3"),
            ({"caps": half, "method": heedless}, "Heedless' has clients compute more than"),
        ],
    )


def test_privacy_that_would_not_hold():
    refusals.check_keywords(
        partial(settings, 8, **PRIVATE),
        [
            ({"weighting": "examples"}, "bound the weight of a client; set weighting: uniform"),
            ({"clip": None}, "Privacy needs norms to clip to"),
            ({"clip": ClipSettings(multiple=4.0)}, "and clip.quantile to have them follow"),
            ({"clip": ClipSettings(1.0, quantile=0.5), "privacy": None}, "counts clients under the noise"),
            ({"defence": "trim"}, "which a defence does not take; leave defence out"),
            ({"min_replies": 2}, "min_replies is 2; leave it at 1"),
        ],
    )
    refusals.check_keywords(
        PrivacySettings,
        [
            ({"noise_multiplier": 0.0}, "noise_multiplier is above 0, got 0.0"),
            ({"noise_multiplier": 1.0, "delta": 0.0}, "delta is above 0 and below 1, got 0.0"),
            ({"noise_multiplier": 1.0, "delta": 1.0}, "delta is above 0 and below 1, got 1.0"),
        ],
    )
    without_psi = PRIVATE | {"clip": ClipSettings(1.0), "task": Task(smooth_net())}
    needed = "the psi gradient, which is learned; set clip.psi"
    refusals.check([("psi without a norm", partial(protocol, **without_psi), needed)])


def test_safeguards():
    no_median = "has a median of 0, so nothing would be learnt with upload: topk; leave it or defence out"
    options = {"defence_options": {"share": 0.1}}
    half = {"defence": "krum", "defence_options": {"share": 0.5}}
    refusals.check_keywords(
        partial(settings, 8, **UNIFORM),
        [
            ({"max_examples": 0}, "max_examples is at least 1 and at most 1000000000, got 0"),
            ({"min_replies": 0}, "min_replies is at least 1, got 0"),
            ({"min_replies": 9}, r"min_replies is between 1 and the cohort \(8\), got 9"),
            ({"round_timeout": 0.0}, "round_timeout is above 0, got 0.0"),
            ({"node_timeout": -1.0}, "node_timeout is at least 0, got -1.0"),
            (
                {"defence": "trim", "weighting": "examples"},
                "counts clients, not examples; set weighting: uniform",
            ),
            (options, "no defence to take them; set defence as well"),
            ({"defence": "median", "defence_options": {"bucket": 0}}, "whole number of at least 1, got 0"),
            ({"defence": "medain"}, "Unknown defence 'medain': did you mean 'median'"),
            ({"defence": "median", **options}, "The defence 'median' does not take the options"),
            (half, "above 0 and below 0.5, got 0.5"),
            ({"defence": "median", "upload": "topk"}, no_median),
        ],
    )


def test_norms_to_clip_to():
    either = "are numbers or follow the clients; leave out multiple"
    both = "a multiple of the usual or, with privacy, a quantile"
    rows = [
        ({"weights": 1.0, "multiple": 2.0}, either),
        ({"psi": 1.0, "multiple": 2.0}, either),
        ({"multiple": -1.0}, "multiple is above 0"),
        ({"multiple": 2.0, "quantile": 0.5}, both),
        ({"weights": 1.0, "quantile": 1.0}, "quantile is above 0 and below 1"),
        ({}, "Norms to clip to are positive numbers"),
        ("adaptively", "clip"),
    ]
    refusals.check_keywords(partial(settings, 8), [({"clip": clip}, says) for clip, says in rows])
    refusals.check((str(clip), partial(tiny, clip=clip), ConfigError, "clip") for clip, _ in rows)
    norms = (0.0, (), (1.0, -1.0), math.inf, math.nan)
    refusals.check_keywords(
        ClipSettings, [({"weights": norm}, "Norms to clip to are positive") for norm in norms]
    )


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
    client = next(c for c in range(agreed.settings.clients) if agreed.chunk(c) == 2)
    start, jobs = Federation(agreed).start(1), agreed.plan(client, 1)
    arrays = encode_update(Executor(agreed).run(start, client, build({}).shards[client], jobs))
    w, psi = arrays["w"], arrays["psi"]
    scalars = {"examples": 3, "loss": 0.5, "unseen_loss": 0.7}

    def decoded(arrays=arrays, **changes):
        known = {name: value for name, value in {**scalars, **changes}.items() if value is not None}
        return partial(decode_update, arrays, known, agreed, client, jobs)

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
            ("a NaN", decoded({**arrays, "w": np.append(w[:-1], np.float32("nan"))}), "w_3 has values"),
            ("a psi less", decoded({**arrays, "psi": psi[1:]}), "psi has shape"),
            ("no psi", decoded({"w": w}), unasked),
            ("an array more", decoded({**arrays, "more": psi}), unasked),
            ("no arrays", decoded({}), unasked),
            ("no scalars", decoded(examples=None, loss=None, unseen_loss=None), number),
            ("half an example", decoded(examples=2.0), number),
            ("no unseen loss", decoded(unseen_loss=None), unseen),
            ("a whole unseen loss", decoded(unseen_loss=1), unseen),
            ("a list as loss", decoded(unseen_loss=[0.1]), unseen),
            ("half a visit", decoded(visited=2.0, seconds=0.1), visited),
            ("a word as seconds", decoded(visited=2, seconds="0.1"), visited),
            ("many visits", decoded(visited=10**16, seconds=0.1), "visited is 1.*not between"),
        ]
    )
