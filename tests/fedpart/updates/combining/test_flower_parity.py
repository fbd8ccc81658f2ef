"""What Flower's own strategies make of the same clients' weights, round after round."""

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAvgM, FedProx, FedYogi
from problems import chain_net, settings, shards

from fedpart import Federation, LocalSettings, Protocol, SGDSettings, Task
from fedpart.engines.executor import Executor
from fedpart.federated.cohorts import sum_cohort
from fedpart.flower.workarounds.objects import claim_identity

SIZES, ROUNDS = [3, 7, 2, 9, 4], 10
STRATEGIES = {
    "fedprox": (FedProx(proximal_mu=0.5), {"mu": 0.5}),
    "yogi": (FedYogi(eta=0.02, beta_1=0.8, beta_2=0.95, tau=1e-2), {"eps": 1e-2, "betas": (0.8, 0.95)}),
    "adagrad": (FedAdagrad(eta=0.02, tau=1e-2), {"eps": 1e-2}),
    "fedavgm": (FedAvgM(server_learning_rate=0.02, server_momentum=0.7), {"momentum": 0.7}),
}


def reply(w, examples):
    claim_identity()
    sent = Message(RecordDict(), 1, "train")
    arrays, metrics = ArrayRecord({"w": Array(w.numpy())}), MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=sent)


@pytest.mark.quick(2)
@pytest.mark.parametrize("way", STRATEGIES)
def test_the_weights_are_those_of_flower(way):
    strategy, options = STRATEGIES[way]
    options = options if way == "fedprox" else {**options, "learning_rate": 0.02}
    how = LocalSettings(learning_rate=0.3, batch_size=2, epochs=2)
    server = {"server": SGDSettings(1.0), "local": how, "chunks": (1.0,)}
    task = Task(chain_net(), samples=1, precision="fp64")
    protocol = Protocol(task, settings(5, method=way, method_options=options, **server))
    federation, executor, data = Federation(protocol), Executor(protocol), shards(SIZES)
    for _ in range(ROUNDS):
        start, replies = federation.start(), []
        before = start.w.clone()

        def answer(client, start=start, before=before, replies=replies):
            update = executor.run(start, client, data[client], protocol.plan(client, start.number))
            replies.append(reply(before + update.parts[1], update.examples))
            return update

        found = sum_cohort(protocol, start, range(5), answer)
        if way == "fedavgm":
            strategy.current_arrays = strategy.current_arrays or ArrayRecord({"w": Array(before.numpy())})
        else:
            strategy.current_arrays = {"w": before.numpy()}
        theirs, _ = strategy.aggregate_train(start.number, replies)
        federation.step(found)
        torch.testing.assert_close(federation.w, torch.from_numpy(theirs["w"].numpy()), rtol=0, atol=1e-9)
    assert (federation.w - before).abs().max() > 1e-4
