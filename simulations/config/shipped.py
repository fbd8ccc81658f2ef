"""Configurations that come with fedpart, by name: quickstart, table4/mnist_1250, tables/sizes."""

import re
from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"


def shipped() -> dict[str, Path]:
    """The files by name, which is their place in the folder without `.yaml`; parts of others are left out."""
    files = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "shared")
    return {path.relative_to(CONFIGS).with_suffix("").as_posix(): path for path in files}


def file_of(text: str) -> str:
    """The path of a file that is there; of a shipped one, if ``text`` is its name; else ``text`` itself."""
    return text if Path(text).is_file() else str(shipped().get(text, text))


def purpose(file: Path) -> str:
    """The first sentence of the comment that a shipped file begins with."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return re.split(r"(?<!App\.)(?<=\.) ", " ".join(lines), maxsplit=1)[0]
