"""Personalising: the network of a finished federated run, fine-tuned on the examples of each client."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any

import safetensors.torch
import torch

from fedpart import Dataset, SGDSettings, personalise
from fedpart.checks import require
from fedpart.engines.batches import divided, evaluated
from fedpart.registry import nearest
from simulations.building.experiment import Experiment, build
from simulations.building.task import load_saved, torch_threads
from simulations.config.load import ConfigError, ExperimentConfig, with_overrides
from simulations.config.yaml_files import key_of
from simulations.errors import one_sentence
from simulations.folders.data_files import listed_data, refuse_changed_data
from simulations.folders.run_directory import STATE, saved_config
from simulations.results.personal import MOST, ClientGain, Gains
from simulations.results.scores import client_text
from simulations.results.terminal.progress import Progress

SEEN = (
    "The run has trained on the shards that the held-out examples are from, so scores before and after are "
    "both too good; the gain compares two networks that have seen them."
)

HOLDOUT = 0.25  # of each shard, where a run has kept none for evaluations
PARTED = " Before, what clients keep is as it began: these are scores of a network that nobody has."
UNSEEN = "The run has not trained on the examples that are scored: those that evaluation: clients held out."


@dataclass(frozen=True)
class Tuning:
    """How clients are personalised, as by :func:`fedpart.personalise`; None: as the run's local training."""

    clients: Sequence[int | str] | int | None = None  # numbers or names, or how many; None: all
    holdout: float | None = None  # share that is scored; a run with `evaluation: clients` has its own
    epochs: int = 5
    learning_rate: float | None = None
    layers: Sequence[str] = ("*",)


def personalise_run(
    run: Path, tuning: Tuning, overrides: Sequence[str] = (), save: Path | None = None,
    progress: Progress | None = None,
) -> Gains:  # fmt: skip
    """Fine-tune the full network of a run on clients' shards, with its psi fixed."""
    config = _configuration(run, overrides)
    holdout = _holdout(config, tuning.holdout)
    with torch_threads(config.threads):
        with one_sentence():
            refuse_changed_data(run, listed_data(config))
            experiment = build(config)
            federation = experiment.start()
            load_saved(federation, run)
        names = experiment.client_names
        numbers = _numbers(tuning.clients, config.clients, names)
        rate = config.local.learning_rate if tuning.learning_rate is None else tuning.learning_rate
        with one_sentence():
            sgd = SGDSettings(rate, config.local.momentum)
        big = [client for client in numbers if len(experiment.shards[client]) > 1]
        require(big, "No client has two examples, one to train on and one to hold out.", ConfigError)
        gains = []
        with (progress or Progress(quiet=True)).clients(len(big)) as advance:
            for client in big:
                with one_sentence():
                    shard, held_out = _examples(experiment, client, holdout)
                    tuned = personalise(
                        federation, shard, client=client, held_out=held_out, epochs=tuning.epochs,
                        batch_size=config.local.batch_size, sgd=sgd, weight_decay=config.local.weight_decay,
                        layers=tuning.layers, samples=config.evaluation_samples,
                    )  # fmt: skip
                    if save is not None:
                        save.mkdir(parents=True, exist_ok=True)
                        file = save / f"client-{client}.safetensors"
                        safetensors.torch.save_model(tuned.module, str(file))
                chunk, scores = experiment.protocol.chunk(client), (tuned.before, tuned.after)
                name = names[client] if names else None
                gains.append(ClientGain(client, chunk, tuned.examples, tuned.held_out, *scores, name))
                advance()
    settings: dict[str, Any] = {
        "method": config.method, "seed": config.seed,
        **{key: value for key, value in asdict(tuning).items() if key != "clients"}, "holdout": holdout,
        "layers": list(tuning.layers), "learning_rate": rate, "momentum": config.local.momentum,
        "weight_decay": config.local.weight_decay, "batch_size": config.local.batch_size,
    }  # fmt: skip
    note = (UNSEEN if config.evaluation == "clients" else SEEN) + (PARTED if federation.parted else "")
    return Gains(gains, [client for client in numbers if client not in big], settings, note)


def _holdout(config: ExperimentConfig, asked: float | None) -> float | None:
    """The share of each shard that is scored; None: the examples that the run has kept for evaluations."""
    if config.evaluation == "clients":
        if asked is not None:
            fault = f"--holdout {asked} does not fit a run with evaluation: clients, whose clients are scored"
            raise ConfigError(f"{fault} on the examples that they have kept for evaluations; leave it out.")
        return None
    if asked is not None and not 0 < asked < 1:
        raise ConfigError(f"--holdout is a share between 0 and 1, for instance 0.25, not {asked}.")
    return HOLDOUT if asked is None else asked


def _examples(experiment: Experiment, client: int, holdout: float | None) -> tuple[Dataset, Dataset | float]:
    """What is trained on, and what is scored: what the run itself has held out, or a share of the shard."""
    shard = experiment.shards[client]
    if holdout is not None:
        return shard, holdout
    places = divided(experiment.protocol, client, len(shard))
    learned = torch.cat([places.learned, places.feedback]).sort().values
    return shard.subset(learned), evaluated(experiment.protocol, client, shard)


def _configuration(run: Path, overrides: Sequence[str]) -> ExperimentConfig:
    """The run's own, of which only what decides no numbers may change."""
    saved = saved_config(run)
    fault = f"The run in {run} trained in one place and has no clients to personalise for"
    require(isinstance(saved, ExperimentConfig), f"{fault}; name a federated run (fedpart run).", ConfigError)
    remedy = f"continue it with fedpart {saved.clock.command} --resume {quote(str(run))}"
    require((run / STATE).is_file(), f"The run in {run} is not finished; {remedy}.", ConfigError)
    for override in overrides:
        if key_of(override).partition(".")[0] in saved.deciding("numbers"):
            raise ConfigError(
                f"--set {override} changes what the run in {run} was; personalise it as it is (only keys "
                f"that decide no numbers may change, such as data_dir, device and threads)."
            )
    return with_overrides(saved.resolved(), overrides, f"personalising {run}", ExperimentConfig)


def _numbers(asked: Sequence[int | str] | int | None, clients: int, names: Sequence[str] = ()) -> list[int]:
    """The clients that are meant, ascending, each once."""
    wanted = range(clients) if asked is None else range(asked) if isinstance(asked, int) else asked
    known = {name: number for number, name in enumerate(names)}
    for text in wanted:
        if text not in known and not str(text).isdecimal():
            listed = [client_text(client, names) for client in known.values()]
            hint = nearest(text, listed) if len(known) <= MOST else "its summary.json has client_names."
            raise ConfigError(f"No client of the run is called {text!r}: {hint}")
    numbers = [known[text] if text in known else int(text) for text in wanted]
    unknown = [client for client in numbers if not 0 <= client < clients]
    if unknown:
        fault = f"The run has {clients} clients, numbered 0 to {clients - 1}"
        raise ConfigError(f"{fault}, and no client {unknown[0]}; ask for those that it has.")
    return sorted(set(numbers))
