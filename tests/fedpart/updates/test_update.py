"""Updates: what is refused, and sums that do not depend on how the work is divided."""

import dataclasses
import math
from functools import partial

import pytest
import refusals
import torch
from problems import chain_net, nothing, settings, update_of

from fedpart import Federation, Protocol, Task
from fedpart.engines.worker import copied
from fedpart.federated.cohorts import BLOCKS, CohortSum, aggregate, blocks, sum_updates, tally
from fedpart.updates.defences import DEFENCES
from fedpart.updates.errors import LONGEST, ClientError, Refusal, brief, skipped
from fedpart.updates.update import PSI, Update, validate

SIZES = (4, 3, 2)


def update(ks=(2, 3), psi=True, examples=5, loss=1.5, seed=0, sizes=SIZES, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    deltas = {k: scale * torch.randn(sizes[k - 1], generator=g) for k in ks}
    more = {"unseen_loss": 2 * loss, "unseen_examples": examples} if psi else {}
    more |= {"examples": examples, "loss": loss, "visited": 3 * examples, "seconds": 0.25 * examples}
    return update_of(deltas, torch.randn(2, generator=g) if psi else None, **more)


@pytest.mark.parametrize("cohort", [1, 3, 100, 255, 256, 257, 300, 1000])
def test_blocks_are_contiguous_complete_and_even(cohort):
    parts = blocks(range(cohort))
    assert [position for part in parts for position in part] == list(range(cohort))
    assert len(parts) == min(BLOCKS, cohort)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def terms(cohort, missing=()):
    """Weighted updates of clients of all chunks, of very different sizes: their sum depends on the order."""

    def term(i):
        of = {"ks": range(1 + i % 3, 4), "psi": i % 3 > 0, "scale": 10.0 ** (i % 7)}
        return update(examples=1 + i, seed=i, **of).weigh(1.0 + i)

    return [None if i in missing else term(i) for i in range(cohort)]


def borrowed(updates):
    """Their sum, of updates whose tensors are spoilt as soon as they have been added."""
    total = None
    for term in filter(None, updates):
        tensors = [*term.cells.values(), *([] if term.psi is None else [term.psi])]
        copy = copied(term, total)
        total = copy if total is None else total.add(copy)
        for tensor in tensors:
            tensor.fill_(7.0)
    return total


@pytest.mark.parametrize(
    "missing", [(), (0,), (3, 4, 5, 22), range(23)], ids=["none", "first", "a block", "all"]
)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 11])
def test_the_sum_has_the_same_bits_for_any_number_of_workers(workers, missing, monkeypatch):
    monkeypatch.setattr("fedpart.federated.cohorts.BLOCKS", 8)
    cohort, sums = 23, {}
    expected, fresh = aggregate(range(cohort), terms(cohort, missing).__getitem__), terms(cohort, missing)
    for worker in reversed(range(workers)):  # workers finish in any order
        for index, block in list(enumerate(blocks(range(cohort))))[worker::workers]:
            sums[index] = borrowed(fresh[i] for i in block)
    total = borrowed(sums[index] for index in sorted(sums))
    if len(missing) == cohort:
        assert total is None and expected is None
        return
    for field in dataclasses.fields(Update):
        mine, theirs = getattr(total, field.name), getattr(expected, field.name)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert total.cells.keys() == {1, 2, 3}
    left = [i for i in range(cohort) if i not in missing]
    assert total.clients == len(left)
    assert total.visited == 3 * total.examples == 3 * sum(1 + i for i in left)
    assert total.seconds == 0.25 * total.examples
    assert total.weights[1] == sum(1.0 + i for i in left if i % 3 == 0)
    assert total.weights[PSI] == total.unseen_examples == sum(1.0 + i for i in left if i % 3 > 0)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_averages_by_hand(weighting):
    """Three clients: chunk 1 with 2 examples, chunk 2 with 3, chunk 3 with 7: what Adam is given."""
    task = Task(chain_net())
    federation = Federation(Protocol(task, settings(3, chunks=(0.4, 0.3, 0.3), weighting=weighting)))
    sizes, p = federation.protocol.partition.sizes, task.psi_space.size
    seen = {}
    federation.optimiser.step = lambda index, gradient: seen.update({index + 1: gradient})
    federation.optimiser_psi.step = lambda index, gradient: seen.update({"psi": gradient})

    clients = []
    for k, examples in ((1, 2), (2, 3), (3, 7)):
        deltas = {j: torch.full((sizes[j - 1],), 10.0 * k) for j in range(k, 4)}
        psi = torch.full((p,), float(k)) if k > 1 else None
        clients.append(update_of(deltas, psi, examples=examples, loss=float(k)))
    terms = [federation.protocol.receive(one, c, nothing())[0] for c, one in enumerate(clients)]
    total = sum_updates(terms)
    federation.step(CohortSum(total=total))

    n = {1: 2, 2: 3, 3: 7} if weighting == "examples" else {1: 1, 2: 1, 3: 1}
    for j in (1, 2, 3):
        contributors = range(1, j + 1)
        expected = -sum(10.0 * k * n[k] for k in contributors) / sum(n[k] for k in contributors)
        torch.testing.assert_close(seen[j], torch.full_like(seen[j], expected))
    # L_ML is a sum over examples, however clients weigh in averages of weights.
    expected = (2 * 3 + 3 * 7) / 10
    torch.testing.assert_close(seen["psi"], torch.full_like(seen["psi"], expected))
    assert total.loss / total.examples == pytest.approx((1 * 2 + 2 * 3 + 3 * 7) / 12)


def test_what_reports_list_of_clients_that_are_left_out_and_how_often_each_category_occurs():
    refused = ClientError.refused(3, 2, Refusal("size", "w_1 is too long"))
    says = "The update of client 3 in round 2 was refused: w_1 is too long."
    assert skipped(3, refused) == {"client": 3, "category": "size", "reason": says}
    failed = {"client": 1, "category": "client_error", "reason": "no labels"}
    assert skipped(1, ValueError("no\nlabels")) == failed
    silent = skipped(4, ClientError.silent(4, 5))
    assert silent["category"] == "no_answer" and "Client 4 did not answer in round 5" in silent["reason"]
    assert ClientError("x").category == "client_error"
    skips = [{"client": c, "category": kind} for c, kind in ((4, "size"), (1, "late"), (9, "size"))]
    assert CohortSum([1, 2, 4, 7], skipped=skips).taken == [2, 7]
    counts = tally(skips, ["dtype", "late"])
    assert list(counts.items()) == [("dtype", 1), ("late", 2), ("size", 2)]
    assert tally([]) == {}


def test_a_sentence_and_what_a_refusal_quotes_of_an_upload_are_cut():
    """A number of examples may be a list of ten thousand; a log line is a line."""
    assert brief("a" * LONGEST) == "a" * LONGEST
    assert brief("a" * (LONGEST + 1)) == "a" * (LONGEST - 3) + "..."
    assert brief(" a\tb\x00c\n") == "a b c"
    assert brief("a\x1b[31m\n\u202eb").isprintable()
    assert brief(" " * 2 * LONGEST + "b") == "", "what lies far behind is not looked at"
    assert brief(" " * (2 * LONGEST - 1) + "bc") == "b"
    refusal = Refusal("malformed", f"its examples are {[2**40] * 3000}\nand more")
    assert len(str(refusal)) == LONGEST and str(refusal).startswith("its examples are [1099511627776, ")
    for error in (ClientError.refused(3, 1, refusal), ClientError.of(3, 1, ValueError("9" * 10**5))):
        assert len(str(error)) < LONGEST + 100 and "\n" not in str(error)


def good(ks=(2, 3), w2=None, w3=None, **changes):
    """A good good, but for the changes."""
    deltas = {k: torch.ones(5 - k) for k in ks} | {k: w for k, w in ((2, w2), (3, w3)) if w is not None}
    known = {"unseen_loss": 3.0, "unseen_examples": 5, "psi": torch.ones(2)}
    known |= {"examples": 5, "loss": 1.5, "visited": 15, "seconds": 1.25}
    return update_of(deltas, **known | changes)


def check(answer):
    validate(answer, max_examples=100)


def test_updates():
    check(good())
    check(good(w2=torch.full((3,), 1e15)))
    no_number, both, large = ([0.0, math.nan, 0.0], [math.inf, -math.inf, 0.0], [0.0, -1e38, 0.0])
    rows = [
        (good(w2=torch.tensor(no_number)), "w_2 has values that are not finite"),
        (good(w2=torch.tensor(both)), "w_2 has values that are not finite"),
        (good(w2=torch.tensor(large)), r"w_2 has values beyond 1e\+15, the most"),
        (good(psi=torch.tensor([0.0, math.inf])), "psi gradient has values that are not finite"),
        (good(examples=0), "claims 0 examples"),
        (good(examples=-3), "claims -3 examples"),
        (good(examples=math.nan), "claims nan examples"),
        (good(loss=math.nan), "its loss is nan, not between -1e[+]15 and 1e[+]15"),
        (good(unseen_loss=math.inf), "its unseen_loss is inf, not between"),
        (good(unseen_loss=-2e15), "its unseen_loss is -2000000000000000.0, not between"),
        (good(loss=math.inf), "its loss is inf, not between"),
        (good(visited=-1), "its visited is -1, not between 0 and 1e[+]15"),
        (good(seconds=math.nan), "its seconds is nan, not between"),
    ]
    calls = [(partial(check, answer), says) for answer, says in rows]
    refusals.check((f"{i}: {says}", call, ValueError, says) for i, (call, says) in enumerate(calls))


def defended(**changes):
    options = {"weighting": "uniform", "defence": "centred", "chunks": (0.5, 0.3, 0.2), **changes}
    return Federation(Protocol(Task(chain_net(), samples=1), settings(10, **options)))


DEFENDED = [
    ("trim", {"share": 0.0}, "above 0 and below 0.5, got 0.0"),
    ("krum", {"share": 0.5}, "above 0 and below 0.5, got 0.5"),
    ("geometric", {"smoothing": 0.0}, "smoothing of the defence 'geometric' is above 0"),
    ("centred", {"radius": 0.0}, "radius of the defence 'centred' is above 0, or null"),
    ("centred", {"reach": 0.5}, "reach of the defence 'centred' is at least 1, or null"),
    ("centred", {"momentum": 1.0}, "momentum of the defence 'centred' is from 0 to below 1"),
]


def test_checkpoints_of_another_defence_and_options_that_make_no_sense(tmp_path):
    defended(defence_options={"bucket": 2}).save(tmp_path / "checkpoint.pt")
    others = [{}, {"defence": None}, {"defence_options": {"bucket": 2, "momentum": 0.5}}]
    loads = {f"{changes}": defended(**changes).load for changes in others}
    says = "another configuration: .*(defence|bucket)"
    refusals.check(
        (what, partial(load, tmp_path / "checkpoint.pt"), ValueError, says) for what, load in loads.items()
    )
    refusals.check(
        (f"{name} {options}", partial(DEFENCES.make, name, options), says) for name, options, says in DEFENDED
    )
