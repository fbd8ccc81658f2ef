"""Where each way to combine clients ends, by closed form: clients' losses are parabolas h/2 (w - t)^2."""

import pytest
import torch
from problems import after, settings
from torch import nn

from fedpart import ClipSettings, Dataset, Federation, LocalSettings, Protocol, SGDSettings, Task
from fedpart.engines.executor import Executor
from fedpart.training.local import LocalSGD

BENDS, TARGETS = torch.tensor([1.0, 4.0, 0.25, 2.25]).double(), torch.tensor([-1.0, 0.5, 2.0, 4.0]).double()
COUNTS, RATE, EPOCHS, BATCH = torch.tensor([2, 4, 2, 6]), 0.1, 2, 2
STEPS = EPOCHS * COUNTS // BATCH


def half_square(outputs, targets):
    return (outputs - targets).square().sum(-1) / 2


def ended(method, rounds, spread=1.0, weighting="examples", cohort=4, options=None, clip=None, **local):
    """The federation after so many rounds from 0; targets are ``spread`` times as far apart."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    task = Task(network, samples=1, likelihood=half_square, precision="fp64")
    data = [
        Dataset(torch.full((n, 1), h**0.5), torch.full((n, 1), h**0.5 * t * spread))
        for n, h, t in zip(COUNTS.tolist(), BENDS.tolist(), TARGETS.tolist(), strict=True)
    ]
    how = LocalSettings(learning_rate=RATE, epochs=EPOCHS, batch_size=BATCH, **local)
    fixed = settings(
        4, method=method, method_options=options or {}, cohort=cohort, weighting=weighting, local=how,
        server=SGDSettings(1.0), chunks=(1.0,), clip=clip,
    )  # fmt: skip
    return after(rounds, Federation(Protocol(task, fixed)), data)[0]


def ends(*arguments, **options):
    """w there."""
    return ended(*arguments, **options).w.item()


def weights(weighting):
    return COUNTS.double() / COUNTS.sum() if weighting == "examples" else torch.full((4,), 0.25).double()


def mean(targets, of):
    return float((of * targets).sum() / of.sum())


def drift(p):
    """Where FedAvg ends."""
    return mean(TARGETS, p * (1 - (1 - RATE * BENDS) ** STEPS))


@pytest.mark.slow
@pytest.mark.parametrize("method, weighting", [("scaffold", "uniform"), ("feddyn", "examples")])
def test_the_fixed_point_does_not_depend_on_how_clients_differ(method, weighting):
    options = {"alpha": 1.0} if method == "feddyn" else {}
    p = weights(weighting)
    assert ends("fedavg", 40, 1.0, weighting) == pytest.approx(drift(p), rel=1e-6)
    for spread in (1.0, 3.0):
        best = mean(TARGETS * spread, p * BENDS)
        assert ends(method, 60, spread, weighting, options=options) == pytest.approx(best, rel=1e-6)
        assert abs(best - drift(p)) > 0.1


@pytest.mark.slow
def test_so_it_is_with_a_part_of_the_clients_in_a_round():
    """The mean of variates is over all clients, also over those that the round has not asked."""
    best = mean(TARGETS, weights("examples") * BENDS)
    assert ends("scaffold", 60, cohort=3) == pytest.approx(best, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_so_it_is_where_clients_and_server_clip_alike_and_with_decay(method):
    """To norms that the server alone knows it may not be, see the refusals."""
    p, options = weights("examples"), {"alpha": 1.0} if method == "feddyn" else {}
    best = float((p * BENDS * TARGETS).sum() / (p * (BENDS + 0.1)).sum())
    found = ends(method, 80, options=options, clip=ClipSettings(0.3), weight_decay=0.1)
    assert found == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_counts_clients_by_their_examples_not_by_their_steps(momentum):
    """Eq. 8 from w = 0: the mean of changes over lengths, times the mean length."""
    p, alike = weights("examples"), LocalSettings(RATE, BATCH, EPOCHS, momentum)
    changes = torch.zeros(4).double()
    for i in range(4):
        velocity = 0.0
        for _ in range(STEPS[i]):
            velocity = momentum * velocity + BENDS[i] * (changes[i] - TARGETS[i])
            changes[i] -= RATE * velocity
    lengths = torch.tensor([alike.length(n) for n in COUNTS.tolist()], dtype=torch.float64)
    first = float((p * lengths).sum() * (p * changes / lengths).sum())
    assert ends("fednova", 1, momentum=momentum) == pytest.approx(first, rel=1e-12)
    if not momentum:
        shares = p * (1 - (1 - RATE * BENDS) ** STEPS) / STEPS
        assert ends("fednova", 20) == pytest.approx(mean(TARGETS, shares), rel=1e-6)
        best = mean(TARGETS, p * BENDS)
        assert abs(mean(TARGETS, shares) - best) < abs(ends("fedavg", 20) - best) / 2


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_length_is_the_change_under_a_gradient_of_1(momentum):
    local = LocalSettings(0.3, 4, 2, momentum)
    sgd = LocalSGD(lambda: torch.zeros(1), local.sgd, 0.0, 6)
    for _ in range(6):
        sgd.step(torch.ones(1))
    assert local.length(11) == pytest.approx(-sgd.change().item(), rel=1e-6)


def test_fedprox_pulls_to_where_the_round_began():
    """mu/2 |w - w_start|^2 has the gradient mu (w - w_start), here on top of every client's own."""
    mu, p, w = 0.7, weights("examples"), 0.0
    for _ in range(2):
        changes = torch.zeros(4).double()
        for i in range(4):
            for _ in range(STEPS[i]):
                changes[i] -= RATE * (BENDS[i] * (w + changes[i] - TARGETS[i]) + mu * changes[i])
        w += float((p * changes).sum())
    assert ends("fedprox", 2, options={"mu": mu}) == pytest.approx(w, rel=1e-12)
    assert ends("fedprox", 2, options={"mu": 0.0}) == ends("fedavg", 2)


@pytest.mark.slow
def test_a_rate_that_falls_is_the_rounds_and_scaffold_still_ends_at_the_optimum():
    local = LocalSettings(0.4, 2, 2, cosine_rounds=50)
    rates = [local.at(round).learning_rate for round in (1, 26, 51, 80)]
    assert rates == pytest.approx([0.4, 0.4 * (0.01 + 0.99 / 2), 0.004, 0.004])
    best = mean(TARGETS, weights("examples") * BENDS)
    assert ends("scaffold", 60, cosine_rounds=120) == pytest.approx(best, rel=1e-4)
    first = float((weights("examples") * (1 - (1 - 0.001 * BENDS) ** STEPS) * TARGETS).sum())
    changed = ends("fedavg", 4, cosine_rounds=1) - ends("fedavg", 3, cosine_rounds=1)
    assert 0 < changed < first


@pytest.mark.slow
def test_dittos_networks_end_where_their_loss_and_the_pull_balance():
    """On h/2 (v - t)^2 + lam/2 (v - w)^2 that is (h t + lam w) / (h + lam), w being FedAvg's."""
    lam, w = 0.7, drift(weights("examples"))
    found = ended("ditto", 100, options={"lam": lam})
    assert found.w.item() == pytest.approx(w, rel=1e-6)
    for client, best in enumerate((BENDS * TARGETS + lam * w) / (BENDS + lam)):
        own = Executor(found.protocol).scored(client, found.start()).w.item()
        assert own == pytest.approx(best.item(), rel=1e-6)
