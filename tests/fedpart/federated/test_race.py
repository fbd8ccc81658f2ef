"""Halving: candidates for the learning rates train in turns, and L_ML keeps one of them."""

import math
from dataclasses import replace

import pytest
import refusals
import torch
from flower_experiment import assert_equal_runs, deployed, local
from problems import after, assert_same, assert_same_state, augmentation, chain_net, settings, shards

from fedpart import AdamSettings, ClientError, Federation, LocalSettings, Protocol, Task, federate, fit
from fedpart.engines import local_engine
from fedpart.methods.halving import Halving, is_ahead
from fedpart.updates.errors import DIVERGED
from fedpart.updates.update import Round

SIZES = [8, 7, 9, 6, 8, 5, 7, 8]
LOCAL, SERVER, PSI = LocalSettings(0.2, batch_size=3), AdamSettings(0.01), AdamSettings(0.02)


def protocol(halving=None, **changes):
    options = {} if halving is None else {"halving": halving}
    rates = {"local": LOCAL, "server": SERVER, "server_psi": PSI}
    given = {"cohort": 5, "method_options": options, **rates, **changes}
    task = Task(chain_net(), transforms=[augmentation()], samples=2)
    return Protocol(task, settings(len(SIZES), **given))


def finished(race, execution, more=2):
    """The reports of a federation until its race is over, and of some rounds more."""
    reports = []
    with local_engine(race, shards(SIZES), 1, execution) as engine:
        while len(race.race.left) > 1:
            engine.run(race.round + 1, reports.append)
        engine.run(race.round + more, reports.append)
    return reports


@pytest.mark.quick(1)
@pytest.mark.parametrize("execution", ["fused", "grouped", "loop"])
def test_who_is_left_is_what_a_run_with_its_rates_alone_would_be(execution):
    local = LocalSettings(0.2, batch_size=100 if execution == "fused" else 8)
    halving = {"server": [300, 1], "psi": [2], "local": [0.5], "rounds": 2}
    race = Federation(protocol(halving, local=local))
    reports = finished(race, execution)
    (number,) = race.race.left
    factors = race.race.halving.candidates[number]
    assert reports[0].candidates == 2 and reports[-1].candidates == 1
    assert reports[-1].factors == factors
    server, psi, rate = factors.values()
    alone = Federation(
        protocol(
            server=AdamSettings(server * 0.01),
            server_psi=AdamSettings(psi * 0.02),
            local=replace(local, learning_rate=rate * 0.2),
        )
    )
    _, others = after(len(race.race.lmls[number]), alone, shards(SIZES), execution=execution)
    assert_same_state(race, alone)
    assert race.w is race.race.leader.w and race.psi is race.race.leader.psi
    mine = [report for report in reports if report.factors == factors]
    for name in ("train_loss", "lml", "cohort", "examples", "skipped"):
        assert [getattr(report, name) for report in mine] == [getattr(report, name) for report in others]


def test_candidates_take_turns_on_the_same_cohorts_and_the_federation_is_the_best_so_far():
    race = Federation(protocol({"server": [1, 3, 9], "rounds": 2}))
    _, reports = after(6, race, shards(SIZES))
    assert [report.factors["server"] for report in reports] == [1.0, 3.0, 9.0] * 2
    assert [report.round for report in reports] == [*range(1, 7)] and race.round == 6
    cohorts = [report.cohort for report in reports]
    assert cohorts == [cohorts[0]] * 3 + [cohorts[3]] * 3 and cohorts[0] != cohorts[3]
    assert reports[0].train_loss == reports[1].train_loss == reports[2].train_loss, "from the same weights"
    assert len({report.train_loss for report in reports[3:]}) == 3
    assert all(report.upload_bytes > 0 and report.candidates == 3 for report in reports)
    race = Federation(protocol({"server": [1, 300], "rounds": 2}))
    after(1, race, shards(SIZES))
    first, _ = race.race.left.values()
    assert [*race.race.left] == [0, 1] and race.w is first.w and race.race.turn == 1


@pytest.mark.slow
def test_a_run_that_is_stopped_in_the_race_goes_on_to_the_same_end(tmp_path):
    """Stopped with three candidates, with two, and soon after the race."""
    task, data = Task(chain_net(), transforms=[augmentation()], samples=2), shards(SIZES)
    options = {"cohort": 5, "seed": 3, "local": LOCAL, "evaluate_every": 100}
    options |= {"method_options": {"halving": {"server": [1, 30, 900], "rounds": 3}}}
    whole = federate(task, data, rounds=30, **options)
    counts = [report.candidates for report in whole.metrics]
    assert {*counts} == {1, 2, 3}
    for stop in (5, counts.index(2) + 1, counts.index(1) + 2, 30):
        resumed = federate(task, data, rounds=stop, checkpoint=tmp_path / "run.pt", resume=True, **options)
    assert_same(resumed, whole)
    for name in ("lml", "factors", "candidates", "cohort"):
        assert [getattr(r, name) for r in resumed.metrics] == [getattr(r, name) for r in whole.metrics]


@pytest.mark.slow
def test_workers_and_flower_have_the_bits_of_one_process():
    config = {"halving": True, "evaluation": "clients"}
    one = local(27, every=9, **config)
    assert {report.candidates for report in one[1]} > {4}, "some have gone"
    assert one[1][8].client_nll is not None
    assert_equal_runs(deployed(27, config, every=9), one)
    assert_equal_runs(local(27, workers=2, every=9, **config), one)


def test_before_the_first_comparison_nobody_is_called_the_best():
    race = Federation(protocol({"server": [3, 1], "rounds": 2}))
    after(3, race, shards(SIZES))
    told = "server x 3, psi x 1, local x 1: the first of 2 candidates, which are not compared before 2 rounds"
    assert race.race.told() == f"{told} of each"
    after(4, race, shards(SIZES))
    assert "the best by L_ML of 2 candidates" in race.race.told()


@pytest.mark.slow
@pytest.mark.parametrize("execution, workers", [("fused", 1), ("grouped", 1), ("loop", 2)])
def test_a_candidate_that_diverges_costs_its_rounds_and_not_the_run(execution, workers):
    """Also where it is the first, and is evaluated."""
    given = {"local": LocalSettings(0.2, batch_size=100), "evaluation": "clients"}
    race = Federation(protocol({"server": [1e30, 1], "rounds": 2}, **given))
    _, reports = after(8, race, shards(SIZES), workers, execution, evaluate_every=1)
    assert reports[2].skipped and reports[2].lml is None and reports[2].factors["server"] == 1e30
    assert {skip["category"] for skip in reports[2].skipped} <= {*DIVERGED}
    assert [*race.race.left] == [1] and reports[-1].candidates == 1 and not reports[-1].skipped
    assert reports[-1].client_nll < 10 and race.race.rates["server"] == 1.0
    assert race.race.told() == "server x 1, psi x 1, local x 1: the best by L_ML of 2 candidates, 1 left"
    with pytest.raises(ClientError, match="lower"):  # where nothing is tried it ends the run
        after(8, Federation(protocol(server=AdamSettings(1e28))), shards(SIZES), workers=workers)


@pytest.mark.slow
def test_where_all_diverge_the_first_says_so():
    race = Federation(protocol({"server": [1e30, 1e29], "rounds": 2}))
    with pytest.raises(ClientError, match=r"lower (the learning rates|local\.learning_rate)"):
        after(9, race, shards(SIZES))
    assert [*race.race.left] == [0]


def test_the_clients_rate_is_multiplied_in_the_round_alone_also_along_a_cosine():
    for round in range(1, 9):
        one = LocalSettings(0.05, cosine_rounds=10).at(round, 3.0)
        assert one == LocalSettings(3.0 * 0.05, cosine_rounds=10).at(round)
    agreed = protocol()
    assert agreed.view(0, 1, rate=2.0).local == replace(agreed.view(0, 1).local, learning_rate=0.4)
    round = Round(1, torch.zeros(1), torch.zeros(1))
    assert (round.local_rate, round.trial) == (1.0, False)


RUNG = [-2.0, -2.0, -1.0, -1.2]
TRIALS = [
    ("the better half", {"server": [1, 2, 3, 4]}, {0: -0.4, 1: -0.1, 2: -0.3, 3: 0.2}, [3, 1]),
    ("more than half of an odd number", {"server": [1, 2, 3]}, {0: -0.4, 1: -0.1, 2: 0.2}, [2, 1]),
]


@pytest.mark.parametrize(
    ("halving", "better", "left"), [row[1:] for row in TRIALS], ids=[r[0] for r in TRIALS]
)
def test_the_better_half_goes_on_the_best_first(halving, better, left):
    courses = {number: [lml + more for lml in RUNG] for number, more in better.items()}
    courses[min(better)][0] = 50.0  # of the first half, which does not count
    assert Halving(**halving, rounds=4).survivors(courses) == left


def test_who_is_within_a_standard_error_or_has_no_l_ml_stays_and_who_has_diverged_goes():
    halving = Halving(server=(1, 2), rounds=4)
    near = [-2.0, -2.0, -1.4, -0.7]  # 0.4 behind, and 0.5 ahead
    assert halving.survivors({0: RUNG, 1: near}) == [1, 0]
    assert halving.survivors({0: RUNG * 2, 1: near * 2}) == [1]
    far = [-2.0, -2.0, -1.4, -1.6]
    assert halving.survivors({0: far, 1: RUNG}) == [1]
    early = [0.0, 0.0, -1.4, -1.6, -2.0, -2.0, -1.4, -1.6]  # the first two rounds do not count, all others do
    assert halving.survivors({0: early, 1: RUNG * 2}) == [1]
    later = [9.0, 9.0, -1.0, -1.2, -3.0, -3.0, -1.0, -1.2]
    assert halving.survivors({0: later, 1: RUNG * 2}) == [1]
    halving, inf = Halving(server=(1, 2, 3), rounds=4), math.inf
    behind = [lml - 1 for lml in RUNG]
    assert halving.survivors({0: [9.0, -inf, 9.0, 9.0], 1: RUNG, 2: behind}) == [1, 2]
    assert halving.survivors({0: [-inf] * 4, 1: [-inf] * 4, 2: [-inf] * 4}) == [0]
    nobody = [-1.0, -1.0, None, None]
    assert halving.survivors({0: nobody, 1: nobody, 2: nobody}) == [0, 1, 2]


def test_one_round_alone_decides_nothing():
    course = [0.0] * 5
    assert is_ahead(course, [-0.1, -0.2, -0.1, -0.3, -0.1])
    assert not is_ahead(course, [-0.1, 0.2, 0.1, -0.2, -1e6]), "a round counts three times the usual at most"
    assert is_ahead(course, [-0.1, -0.2, -0.1, -0.2, -1e6])
    assert not is_ahead([0.0], [-1.0]) and not is_ahead([0.0, None], [-1.0, -1.0])
    assert not is_ahead(course, course)


CONFLICT = r"candidates for the rates take turns .* leave one of both out"
BESIDE = [
    ("keep_best", {"keep_best": "lml"}),
    ("buffer", {"buffer": 2, "devices": {"speed": 1.0}}),
    ("devices", {"devices": {"speed": 1.0}}),
    ("feedback", {"upload": "topk", "error_feedback": True}),
    ("variates", {"method": "partitioned+scaffold"}),
    ("own networks", {"method": "partitioned+ditto"}),
]


def test_what_is_refused():
    two = {"server": [1, 2]}
    refusals.check(
        [
            ("no list", lambda: protocol({"server": 3}), "halving.server"),
            ("no numbers", lambda: protocol({"psi": []}), "positive numbers"),
            ("zero", lambda: protocol({"local": [1, 0]}), "positive numbers"),
            ("a text", lambda: protocol({"server": ["1"]}), "positive numbers"),
            ("one round", lambda: protocol({"rounds": 1}), "rounds is at least 2"),
            ("a list", lambda: protocol([1, 2]), "halving has multiples of rates"),
            ("another key", lambda: protocol({"servers": [1]}), "did you mean 'server'"),
            *((what, lambda more=more: protocol(two, **more), CONFLICT) for what, more in BESIDE),
            ("no L_ML", lambda: protocol(two, chunks=(1.0,)), "halving goes by L_ML"),
            (
                "centralised",
                lambda: fit(chain_net(), shards([20])[0], method_options={"halving": two}),
                "federated",
            ),
        ]
    )
