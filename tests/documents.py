"""The fenced blocks of the documentation, and how their Python is run."""

import re
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from places import ROOT

DOCS = ROOT / "docs"
FENCE = re.compile(r"^```(\S*)[ ]*([^\n]*)\n(.*?)^```[ ]*$", re.DOTALL | re.MULTILINE)
MANY = re.compile(r"(federate\(.*rounds=)\d{2,}")
FILE = re.compile(r"# (?:file: )?([\w.]+\.(?:py|yaml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, and what stands behind it on the line of the fence."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows, if its first line says so."""
        found = FILE.match(self.text)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    text, name = page.read_text(), str(page.relative_to(ROOT))
    return [Block(name, text[: m.start()].count("\n") + 1, m[1], m[2], m[3]) for m in FENCE.finditer(text)]


def run_python(page: Path, folder: Path, most: int | None = None) -> tuple[list[str], dict[str, object]]:
    """Runs the page's Python in order, in ``folder``: what each block prints, and what is defined then.

    Where ``most`` is given, a federation of tens of rounds has so many.
    """
    printed, defined = [], {"__name__": "__main__"}
    with chdir(folder):
        for block in blocks(page):
            if block.language != "python" or block.mark:
                continue
            if block.file:
                Path(block.file).write_text(block.text)
            text = block.text if most is None else MANY.sub(rf"\g<1>{most}", block.text)
            code = compile("\n" * block.line + text, str(page), "exec")
            with redirect_stdout(StringIO()) as shown:
                exec(code, defined)
            printed.append(shown.getvalue())
    return printed, defined
