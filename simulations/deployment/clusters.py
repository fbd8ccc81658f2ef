"""Files for clusters: one run on a Ray cluster, as a job of Slurm or KubeRay; a federation for Kubernetes."""

import re
import shlex
import sys
from pathlib import Path
from string import Template
from textwrap import indent
from typing import Any

import typer
import yaml

from fedpart.checks import require
from simulations.config.load import ExperimentConfig, load_config
from simulations.errors import ConfigError
from simulations.ray.engine import refuse_kept

_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_IMAGE = re.compile(r"[\w./:@-]+")


def cluster(kind: str, files: list[str], nodes: int, image: str, **job: Any) -> None:
    """Write the file of that kind into the current folder."""
    kinds = ("slurm", "rayjob", "kubernetes")
    unknown = f"There is no cluster {kind!r}; write {kinds[0]}, {kinds[1]} or {kinds[2]}."
    require(kind in kinds, unknown, ConfigError)
    if kind == "kubernetes":
        none = not (files or job["overrides"] or job["out"])
        runs = "A federation takes no configuration: runs are submitted to it; for a simulation write rayjob."
        require(none, runs, ConfigError)
        _kubernetes(nodes, image)
        return
    require(len(files) == 1, "Name one configuration, for instance quickstart.", ConfigError)
    settings = [*job.pop("overrides"), *(["device=cuda"] if job["gpus"] else []), "engine=ray"]
    config = load_config(files[0], settings)
    refuse_kept(config)
    name = re.sub(r"[^\w.-]", "_", Path(files[0]).stem)  # for Slurm, and for the shell
    if kind == "slurm":
        _slurm(files[0], name, settings, nodes, **job)
    else:
        require(job["out"] is None, "A rayjob writes into its volume, /runs; leave --out out.", ConfigError)
        _rayjob(config, name, nodes, job["gpus"], image)


def _rayjob(config: ExperimentConfig, name: str, nodes: int, gpus: int, image: str) -> None:
    require(_IMAGE.fullmatch(image), f"--image {image}: that is no name of an image.", ConfigError)
    named = "fedpart-" + re.sub(r"[^a-z0-9-]", "-", name.lower()).strip("-")
    text = indent(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False), 4 * " ").rstrip()
    more = f", nvidia.com/gpu: {gpus}" if gpus else ""
    path = Path(f"{name}.rayjob.yaml")
    path.write_text(_filled("rayjob.yaml.in", name=named, nodes=nodes, image=image, gpus=more, config=text))
    typer.echo(f"{path} is written; with KubeRay's operator in your cluster:\n  kubectl apply -f {path}")


def _slurm(
    file: str, name: str, settings: list[str], nodes: int, *, gpus: int, limit: str, before: int,
    out: Path | None,
) -> None:  # fmt: skip
    if (times := _LIMIT.fullmatch(limit)) is None:
        raise ConfigError(f"--limit {limit}: give a time as 24:00:00 or 1-00:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in times.groups())
    enough = ((days * 24 + hours) * 60 + minutes) * 60 + seconds > before
    short = f"--limit {limit} is over before the {before} seconds of --before are; give a longer one."
    require(enough, short, ConfigError)
    folder = (out or Path("runs") / f"{name}-slurm").absolute()
    readable = not set('%\n"') & set(str(folder))
    require(readable, f'Slurm reads % and " in {str(folder)!r}; give another --out.', ConfigError)
    script = _filled(
        "slurm.sh.in",
        name=f"fedpart-{name}",
        nodes=nodes,
        gpus=f"#SBATCH --gpus-per-node={gpus}\n" if gpus else "",
        limit=limit,
        before=before,
        log=f'"{folder}.log"',
        path=shlex.quote(str(Path(sys.executable).parent)),
        out=shlex.quote(str(folder)),
        config=shlex.quote(str(Path(file).absolute())),
        settings=shlex.join(settings),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)  # for the log
    path = Path(f"{name}.sbatch")
    path.write_text(script)
    typer.echo(f"{path} is written; submit it with: sbatch {path}\nResults will be in {folder}.")


def _kubernetes(nodes: int, image: str) -> None:
    require(_IMAGE.fullmatch(image), f"--image {image}: that is no name of an image.", ConfigError)
    common = {"nodes": nodes, "image": image}
    public = "".join(f", keys/operator/node-{client}.pub" for client in range(nodes))
    for name in ("kubernetes", "kustomization"):
        clients = (_filled(f"{name}-client.yaml.in", client=client, **common) for client in range(nodes))
        text = _filled(f"{name}.yaml.in", public=public, **common) + "".join(clients)
        Path(f"{name}.yaml").write_text(text)
    typer.echo(
        "kubernetes.yaml and kustomization.yaml are written; with an image that your cluster can pull:\n"
        f"  fedpart keys keys --nodes {nodes}\n  kubectl apply -k . --namespace YOURS"
    )


def _filled(template: str, **values: object) -> str:
    return Template(Path(__file__).with_name(template).read_text()).substitute(values)
