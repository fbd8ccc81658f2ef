"""Commands about a federation of processes: ``fedpart up``, ``keys``, ``submit``, ``status``, and others."""

from pathlib import Path
from typing import Annotated

import typer

from simulations.cli.options import Configs, Out, Resume, Sets, Trust, commands_of

app = typer.Typer()
_EXTRA = ("psutil", "A federation of processes", "deployment")
command = commands_of(app, "simulations.cli.federations", *_EXTRA)

_Address = Annotated[
    str, typer.Option("--link", metavar="HOST:PORT", envvar="FEDPART_LINK", help="The SuperLink.")
]
_Keys = Annotated[
    Path, typer.Option("--keys", envvar="FEDPART_KEYS", help="The operator's folder of the keys.")
]


@command
def up(
    config: Configs = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, help="SuperNodes, one for each client; the configuration's clients if not given."
        ),
    ] = None,
    settings: Sets = None, out: Out = None, resume: Resume = None, trust_code: Trust = False,
) -> None:  # fmt: skip
    """Run an experiment on real Flower processes of this machine: a SuperLink and a SuperNode per client."""


@command
def keys(
    folder: Annotated[Path, typer.Argument(help="Private folder for them; outside of any repository.")],
    nodes: Annotated[int, typer.Option(min=1, help="SuperNodes, one for each client.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address by which SuperNodes reach the SuperLink.")
    ] = None,
    owner: Annotated[int | None, typer.Option(help="uid of the processes, if it is not yours.")] = None,
) -> None:
    """Make the certificates, keys and secrets of a federation; what is there already stays."""


@command
def register(link: _Address, keys: _Keys) -> None:
    """Register the SuperNodes' public keys with the SuperLink, each for its client, and no other keys."""


@command
def submit(
    link: _Address, keys: _Keys, config: Configs = None, settings: Sets = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for the results, on the machine of the ServerApp.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Such a folder, of a run to continue.")
    ] = None,
    trust_code: Trust = False,
) -> None:  # fmt: skip
    """Submit a run to a federation that is up, and print its number."""


@command
def status(
    link: _Address,
    keys: _Keys,
    watch: Annotated[bool, typer.Option("--watch", help="Show them again whenever they change.")] = False,
) -> None:
    """Show the SuperNodes and the runs of a federation."""


@command
def results(
    link: _Address,
    keys: _Keys,
    to: Annotated[
        Path | None,
        typer.Argument(help="Folder into which the run's folder is copied, where it can be read."),
    ] = None,
    run: Annotated[int | None, typer.Option(help="The run's number; the latest if not given.")] = None,
    trust_code: Trust = False,
) -> None:
    """Show a run's progress until it has ended, and fetch its results; status 0 if it has completed."""


@commands_of(app, "simulations.deployment.clusters")
def cluster(
    kind: Annotated[str, typer.Argument(metavar="slurm|rayjob|kubernetes", help="What manages the cluster.")],
    config: Configs = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines of a job, or clients of a federation.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="Of each machine of a job; 0: processors alone.")] = 0,
    limit: Annotated[str, typer.Option(help="slurm: time of a job; a longer run is several.")] = "24:00:00",
    before: Annotated[int, typer.Option(min=1, help="slurm: seconds of it in which the run is saved.")] = 300,
    image: Annotated[str, typer.Option(help="rayjob, kubernetes: the image.")] = "fedpart",
    settings: Sets = None,
    out: Out = None,
) -> None:
    """Write a job of one run on several machines, for Slurm or KubeRay, or a federation for Kubernetes."""
