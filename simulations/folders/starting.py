"""Starting folders: files that ``fedpart new`` copies, which run as they are and are made to be changed."""

import shutil
from pathlib import Path

from fedpart.checks import require
from fedpart.registry import nearest
from simulations.config.yaml_files import CONFIGS
from simulations.errors import ConfigError

TEMPLATES = Path(__file__).parents[1] / "templates"
KEPT = ".in"  # ends names of code there, which is none of ours


def start_folder(kind: str, folder: Path) -> str:
    """Write the files of a kind into a folder, which must be new or empty; the command that comes next."""
    kinds = sorted(path.name for path in TEMPLATES.iterdir())
    require(kind in kinds, f"There is no starting folder {kind!r}: {nearest(kind, kinds)}", ConfigError)
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    require(empty, f"{folder} is there and not empty; name a new folder.", ConfigError)
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((TEMPLATES / kind).iterdir()):
        shutil.copyfile(file, folder / file.name.removesuffix(KEPT))
    if kind != "flower":
        shutil.copyfile(CONFIGS / "run.schema.json", folder / "schema.json")  # the configuration names it
    many = "'num-supernodes=10 client-resources-num-cpus=1'"
    flower = f"FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream --federation-config {many}"
    return flower if kind == "flower" else f"fedpart run {kind}.yaml"
