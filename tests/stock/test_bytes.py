"""What adapters cost on the wire: what the cohorts say, to the byte, and a few percent of the network."""

import pytest
from problems import after, settings

from fedpart import Dataset, Federation, LocalSettings, Protocol, Task
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import upload_bytes
from fedpart.federated.wire import encode_state, encode_update
from fedpart.updates.update import Round
from stock import STOCK
from stock.text import distilbert_lora, gpt2_lora

pytestmark = pytest.mark.slow

CLIENTS, ROUNDS, LAYERS = 4, 2, 6  # as many layers as the DistilBert that people use


def federation_of(stock, module, **changes):
    task = Task(module, samples=1, **stock.of())
    changes = {"chunks": (0.5, 0.25, 0.25), "cohort": 3, "local": LocalSettings(), **changes}
    return Federation(Protocol(task, settings(CLIENTS, **changes)))


@pytest.mark.parametrize(
    ("name", "build"), [("DistilBert, LoRA", distilbert_lora), ("GPT-2, LoRA", gpt2_lora)]
)
def test_adapters_are_a_few_percent_of_the_bytes_and_constants_none(name, build):
    stock = STOCK[name]
    data = [Dataset(*stock.shard(2, client)) for client in range(CLIENTS)]
    federation = federation_of(stock, build(0.1, LAYERS))
    whole = federation_of(stock, build(0.1, LAYERS).requires_grad_(True), method="fedavg")
    protocol, sizes = federation.protocol, federation.partition.sizes
    _, reports = after(ROUNDS, federation, data)
    sent = everything = 0
    for report in reports:
        tails = [sum(sizes[protocol.chunk(client) - 1 :]) for client in report.cohort]
        psi = [federation.psi.numel() * (protocol.chunk(client) > 1) for client in report.cohort]
        planned = {client: protocol.plan(client, report.round) for client in report.cohort}
        predicted = sum(upload_bytes(protocol, *of) for of in planned.items())
        assert report.upload_bytes == predicted
        headers = predicted - 4 * (sum(tails) + sum(psi))
        assert 0 < headers < 1000 * len(report.cohort)
        sent += predicted
        everything += sum(upload_bytes(whole.protocol, c, whole.protocol.plan(c, 1)) for c in report.cohort)
    assert sent <= 0.03 * everything

    executor, round = Executor(protocol), Round(ROUNDS + 1, federation.w, federation.psi)
    down = encode_state(federation.w, federation.psi, protocol, protocol.partition)
    assert {n: len(a) for n, a in down.items()} == {"w": sum(sizes), "psi": federation.psi.numel()}
    for client in range(CLIENTS):
        k, jobs = protocol.chunk(client), protocol.plan(client, round.number)
        up = encode_update(executor.run(round, client, data[client], jobs))
        expected = {"w": sum(sizes[k - 1 :]), **({"psi": federation.psi.numel()} if k > 1 else {})}
        assert {n: len(a) for n, a in up.items()} == expected
    assert sum(sizes) == federation.task.counts["trained"] < 0.03 * whole.task.counts["trained"]
