"""Files for clusters: a job for Slurm in which a run has a Ray cluster, a federation for Kubernetes."""

import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import Any

import typer

from fedpart.checks import require
from simulations.config.load import load_config
from simulations.errors import ConfigError
from simulations.ray.engine import refuse_kept

_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_IMAGE = re.compile(r"[\w./:@-]+")


def cluster(kind: str, files: list[str], nodes: int, image: str, **job: Any) -> None:
    """Write the file of that kind into the current folder."""
    kinds = "slurm or kubernetes"
    require(kind in kinds.split(" or "), f"There is no cluster {kind!r}; write {kinds}.", ConfigError)
    if kind == "slurm":
        _slurm(files, nodes=nodes, **job)
    else:
        none = not (files or job["overrides"] or job["out"])
        require(none, "A federation takes no configuration: runs are submitted to it.", ConfigError)
        _kubernetes(nodes, image)


def _slurm(
    files: list[str], overrides: list[str], nodes: int, gpus: int, limit: str, before: int, out: Path | None
) -> None:
    require(len(files) == 1, "Name one configuration, for instance quickstart.", ConfigError)
    if (times := _LIMIT.fullmatch(limit)) is None:
        raise ConfigError(f"--limit {limit}: give a time as 24:00:00 or 1-00:00:00.")
    days, hours, minutes, seconds = (int(part or 0) for part in times.groups())
    enough = ((days * 24 + hours) * 60 + minutes) * 60 + seconds > before
    short = f"--limit {limit} is over before the {before} seconds of --before are; give a longer one."
    require(enough, short, ConfigError)
    settings = [*overrides, *(["device=cuda"] if gpus else []), "engine=ray"]
    refuse_kept(load_config(files[0], settings))
    name = re.sub(r"[^\w.-]", "_", Path(files[0]).stem)  # for Slurm, and for the shell
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
        config=shlex.quote(str(Path(files[0]).absolute())),
        settings=shlex.join(settings),
    )
    folder.parent.mkdir(parents=True, exist_ok=True)  # for the log
    path = Path(f"{name}.sbatch")
    path.write_text(script)
    typer.echo(f"{path} is written; submit it with: sbatch {path}\nResults will be in {folder}.")


def _kubernetes(nodes: int, image: str) -> None:
    require(_IMAGE.fullmatch(image), f"--image {image}: that is no name of an image.", ConfigError)
    common = {"nodes": nodes, "image": image}
    clients = (_filled("kubernetes-client.yaml.in", client=client, **common) for client in range(nodes))
    path = Path("kubernetes.yaml")
    path.write_text(_filled("kubernetes.yaml.in", **common) + "".join(clients))
    secret = 'kubectl create secret generic "$(basename $part)" --from-file=$part'
    typer.echo(
        f"{path} is written; with the namespace that you want, and an image that your cluster can pull:\n"
        f"  fedpart keys keys --nodes {nodes}\n"
        f"  for part in keys/[!c]* keys/clientapp-*; do {secret}; done  # all but the authority's key, ca\n"
        f"  kubectl apply -f {path}"
    )


def _filled(template: str, **values: object) -> str:
    return Template(Path(__file__).with_name(template).read_text()).substitute(values)
