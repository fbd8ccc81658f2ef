"""Where things are, and what a subprocess needs to import what a test does."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFIGS = ROOT / "simulations" / "configs"
EXPERIMENTS = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "tables")
DATA = Path(os.environ.get("FEDPART_DATA_DIR", ROOT.parent / "shared" / "data"))


def importing(file):
    """The value of PYTHONPATH with which a subprocess can import fedpart, the helpers and the file itself."""
    return os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(file).parent)))
