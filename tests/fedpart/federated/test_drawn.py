"""What a change counts of whose client's local steps only some have trained a number."""

from collections import Counter

import pytest
import torch
from problems import accepted
from sizes import ARCHITECTURES, CHUNKS, run, task

from fedpart import ClipSettings, FederationSettings, LocalSettings, PrivacySettings, Protocol
from fedpart.federated.clients import shares_of
from fedpart.methods.base import DRAWS
from fedpart.updates.update import Round, Update


def protocol(method="fjord", **changes):
    common = {"clients": 10, "cohort": 7, "seed": 3, "chunks": CHUNKS, "architectures": ARCHITECTURES}
    common |= {"local": LocalSettings(0.3, batch_size=4), "method": method}
    return Protocol(task(), FederationSettings(**common | changes))


def cells_of(some, size):
    partition = some.partitions[size]
    return {cell for j in range(1, partition.chunks + 1) for cell in partition.cell_sizes(j)}


def update_from(some, client, examples):
    cells = some.upload_sizes(client, some.plan(client, 1))
    return Update({cell: torch.ones(size) for cell, size in cells.items() if cell}, examples=examples)


def at(some, round=1):
    return Round(round, some.partition.initial(), some.task.psi_space.initial())


def largest(some):
    return next(client for client in range(10) if some.architectures[client] == 0)


@pytest.mark.parametrize("steps", [1, 7, DRAWS - 1, DRAWS, 2 * DRAWS + 300])
def test_shares_count_the_steps_that_a_client_takes(steps):
    some = protocol()
    sizes = some.view(largest(some), 1).drawn_sizes(steps)
    taken = Counter(cell for t in range(steps) for cell in cells_of(some, sizes[t % len(sizes)]))
    assert shares_of(sizes, steps, some.partitions) == {cell: n / steps for cell, n in taken.items()}
    assert len(sizes) == min(steps, DRAWS)


def test_a_claim_of_many_examples_draws_few_sizes(monkeypatch):
    """And each cell weighs as much as the steps that were claimed would have trained it."""
    some = protocol(max_examples=10**9)
    client, drawn = largest(some), list[int]()
    whole = type(some.view(0, 1)).drawn_sizes

    def noted(view, steps):
        sizes = whole(view, steps)
        drawn.append(len(sizes))
        return sizes

    monkeypatch.setattr(type(some.view(0, 1)), "drawn_sizes", noted)
    term, _ = accepted(some, client, update_from(some, client, 10**9), at(some))
    assert drawn == [DRAWS]
    assert max(term.weights.values()) == 10**9 and min(term.weights.values()) < 10**9


@pytest.mark.parametrize("examples", [3, 40])
@pytest.mark.parametrize("defence", [None, "median"])
def test_a_change_counts_as_often_as_steps_have_trained_it(examples, defence):
    some = protocol(weighting="uniform", defence=defence)
    client, seen = largest(some), set()
    for round in range(1, 6):
        sizes = some.view(client, round).drawn_sizes(-(-examples // 4))
        share = {j: sum(j in cells_of(some, size) for size in sizes) / len(sizes) for j in cells_of(some, 0)}
        term, _ = some.receive(update_from(some, client, examples), client, at(some, round))
        assert set(term.parts) == {cell for cell, of_steps in share.items() if of_steps}
        for cell, total in term.parts.items():
            torch.testing.assert_close(total, torch.full_like(total, 1 / share[cell] if defence else 1.0))
            assert term.weights[cell] == pytest.approx(1.0 if defence else share[cell])
        seen |= {*share.values()}
    assert len(seen) > 1 and (examples == 40 or 0.0 in seen)


def test_privacy_divides_by_the_shares_that_are_expected():
    changes = {"clip": ClipSettings(1.0, psi=1.0), "weighting": "uniform", "privacy": PrivacySettings(1.0)}
    some = protocol("partitioned", **changes, method_options={"draw_sizes": True})
    whole = protocol("partitioned", **changes)
    weights, before = (each.stages[-1].weights for each in (some, whole))
    outer = set(before) - {0} - cells_of(some, 1) - cells_of(some, 2)  # only the largest networks have them
    assert outer and all(weights[cell] == pytest.approx(before[cell] / 3) for cell in outer)
    inner = set(before) & cells_of(some, 2)
    assert inner and all(weights[part] == pytest.approx(before[part]) for part in {0, *inner})


def test_settings_that_do_not_go_with_drawn_sizes_are_refused():
    drawn = {"method_options": {"draw_sizes": True}}
    with pytest.raises(ValueError, match=r"^draw_sizes draws from architectures, but there are none; give"):
        protocol("partitioned", architectures=None, **drawn)
    with pytest.raises(ValueError, match=r"^A round leaves out numbers that none of a client's steps has"):
        protocol("partitioned", upload="topk", error_feedback=True, **drawn)
    with pytest.raises(ValueError, match="server cannot know how far they step"):
        protocol("partitioned+scaffold", **drawn)
    for execution in ("grouped", "fused"):
        with pytest.raises(ValueError, match="architectures"):
            run(1, method="partitioned", **drawn, execution=execution)
