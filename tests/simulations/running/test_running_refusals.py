"""Runs that cannot be: attacks, evaluation, likelihoods and precisions of a configuration."""

from functools import partial

import refusals
from tiny import tiny

from simulations.building.task import build_task
from simulations.config.load import ConfigError
from simulations.running.precision import choose_precision
from simulations.running.run import run_experiment

CONFIGURATIONS = [
    ({"engine": "ray"}, "one process, client by client, but engine is ray; set engine: local"),
    ({"workers": 2}, "but workers is 2; set workers: 1"),
    ({"execution": "vectorised"}, "but execution is vectorised; set execution: loop"),
    ({"upload": "int8"}, "not their codes; leave attack or upload out"),
    ({"attack": {"kind": "sing"}}, "did you mean 'sign'"),
    ({"attack": {"kind": "sign", "options": {"factor": 1}}}, "the attack 'sign' has no option 'factor'"),
    ({"attack": {"kind": "labels", "once": 1}}, "on the clients' data, which they have in every round"),
    ({"attack": {"kind": "sign", "once": 1}, "devices": {"speed": 10.0}}, "leave once out"),
    ({"attack": {"kind": "sign", "share": 1.0}}, "attack.share cannot be 1.0"),
    ({"attack": None, "evaluation_share": 1.0}, "evaluation_share cannot be"),
    ({"attack": None, "evaluation": "client"}, "evaluation cannot be 'client'"),
]
LIKELIHOODS = [
    ({"likelihood_options": {"temperatur": 2}}, "has no option 'temperatur': did you mean 'temperature'"),
    ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
    ({"likelihood": "ordinal"}, r"'ordinal' needs classes; .*likelihood_options: \{classes: \.\.\.\}"),
    ({"likelihood_options": {"temperature": "abc"}}, "likelihood_options.temperature cannot be 'abc'"),
    (
        {"likelihood": "ordinal", "likelihood_options": {"classes": "5"}},
        "options.classes cannot be '5'; .* integer",
    ),
    ({"likelihood_options": {"label_smoothing": 1.5}}, "strictly between 0 and 1, got 1.5"),
]


def likely(folder, **changes):
    run_experiment(tiny(rounds=1, **changes), folder)


def test_configurations():
    refusals.check(
        (f"{changes}", partial(tiny, **{"attack": {"kind": "sign"}, **changes}), ConfigError, says)
        for changes, says in CONFIGURATIONS
    )


def test_likelihoods(tmp_path):
    refusals.check(
        (f"{changes}", partial(likely, tmp_path / "run", **changes), (ConfigError, ValueError), says)
        for changes, says in LIKELIHOODS
    )


def test_precisions(tmp_path):
    here, absent = tiny(precision="auto"), tiny(precision="auto", data="mnist", data_dir=None)
    deployed = partial(build_task, here, 10, (1, 8, 8))
    refusals.check(
        [
            ("auto where Flower starts the clients", deployed, ValueError, "give fp32 or bf16"),
            ("no data", partial(choose_precision, absent, tmp_path), ConfigError, "MNIST"),
        ]
    )
