"""Every block and command of the documentation is run, or says what it needs."""

import itertools
import re
import shlex
import sys
from pathlib import Path

import pytest
import typer.main
import yaml
from command_line import app, succeeds
from documents import DOCS, Block, blocks, run_python
from places import CONFIGS, ROOT

from simulations.config.load import SHIPPED, ExperimentConfig, TableFile

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", DOCS / "index.md", DOCS / "tutorial.md"]
PAGES += sorted((DOCS / "guides").glob("*.md"))
BLOCKS = [block for page in PAGES for block in blocks(page)]
NEEDS = {  # what a test cannot have
    "needs-docker",
    "needs-cluster",  # a Ray cluster of several machines
    "needs-gpu",  # and minutes of it
    "needs-network",  # packages from an index
    "needs-federation",  # processes of Flower that meet for minutes; `fedpart up` starts the same, in a test
}
INSTALL = "[ -x .uv/bin/uv ] || "
COMMANDS = typer.main.get_command(app).commands
# What makes a documented run take a second: the same command, with so few rounds and examples.
TINY = "data=digits model=digits_cnn rounds=1 training_points=80 validation_points=20 test_points=20"
TINY += " clients=6 cohort=2 samples=1 published=null"
SETS = [part for setting in TINY.split() for part in ("--set", setting)]
FEWER = {
    "run": [*SETS, "--engine", "local"],
    "compare": [*SETS, "--engine", "local", "--seeds", "1", "--jobs", "1"],
    "report": [],
}


def identity(block: Block) -> str:
    return f"{block.page}:{block.line}"


def of(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


def is_run_or_says_what_it_needs(block: Block) -> bool:
    if block.language not in {"python", "yaml", "sh", "text", "{toctree}"}:
        return False
    if not block.mark.startswith("run-by="):
        return not block.mark or block.mark in NEEDS
    test = (ROOT / block.mark.removeprefix("run-by=")).read_text()
    words = shlex.split(block.text, comments=True) if block.language == "sh" else []
    commands = {words[i + 1] for i, word in enumerate(words) if word in ("fedpart", "flwr", "-m")}
    reads_the_page = f'"{Path(block.page).name}"' in test
    return reads_the_page or (bool(commands) and all(f'"{command}"' in test for command in commands))


def test_a_block_is_of_a_kind_that_is_run_or_says_what_it_needs():
    assert not [identity(block) for block in BLOCKS if not is_run_or_says_what_it_needs(block)]


# test_tutorial.py and test_contributing.py run the Python of theirs, and look at what it does.
@pytest.mark.slow
@pytest.mark.parametrize("page", [PAGES[0], *PAGES[4:]], ids=lambda page: page.name)
def test_python_runs(page, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    run_python(page, tmp_path, most=2)


def configure(block: Block, folder: Path) -> None:
    """Makes all that the block describes, in a folder with the Python files of its page."""
    data = yaml.safe_load(block.text)
    if "columns" not in data:
        ExperimentConfig.from_dict(data, identity(block))
        return
    table, file = TableFile.model_validate(data), SHIPPED / "on_the_page.yaml"
    for label, scale in itertools.product(table.rows, (None, *table.scales)):
        table.configured(label, 0, file, folder, scale, [])


def test_yaml_is_a_configuration(tmp_path):
    wrong = []
    for page, shown in itertools.groupby(of("yaml"), key=lambda block: block.page):
        folder = tmp_path / Path(page).stem
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            for other in BLOCKS:
                if other.page == page and other.language == "python" and other.file:
                    (folder / other.file).write_text(other.text)
                    patch.delitem(sys.modules, Path(other.file).stem, raising=False)
            patch.chdir(folder)
            patch.syspath_prepend(str(folder))
            for block in shown:
                try:
                    configure(block, folder)
                except Exception as error:
                    wrong.append(f"{identity(block)}: {error}")
    assert not wrong


def test_the_readme_begins_with_the_commands_that_ci_runs():
    run, tests = (block.text.strip() for block in of("sh")[:2])
    assert run.startswith(INSTALL)
    assert run.endswith(".uv/bin/uv run fedpart run simulations/configs/quickstart.yaml")
    assert tests.startswith(INSTALL) and tests.endswith(".uv/bin/uv run pytest")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    (tmp_path / "simulations").symlink_to(ROOT / "simulations")
    monkeypatch.chdir(tmp_path)


@pytest.mark.quick(1)
@pytest.mark.parametrize("block", [block for block in of("sh")[2:] if not block.mark], ids=identity)
def test_commands_run(block, checkout):
    for line in block.text.strip().splitlines():
        if line.startswith(INSTALL):
            continue
        words = shlex.split(line.removeprefix(".uv/bin/uv run "), comments=True)
        if words[1] == "report":
            words[2] = "runs/table"
            if not Path("runs/table").exists():
                run(["fedpart", "compare", "quickstart.yaml", "--methods", "fedavg", "--out", "runs/table"])
        run(words)


def run(words):
    program, command, *rest = words
    assert program == "fedpart"
    for name in ("quickstart.yaml", "A.yaml", "B.yaml"):
        if name in rest:
            Path(name).write_text((CONFIGS / "rotated_digits.yaml").read_text())
    succeeds(command, *rest, *FEWER[command])


PROSE = [*PAGES, DOCS / "architecture.md"]
INLINE = [(page.name, text) for page in PROSE for text in re.findall(r"`([^`\n]+)`", page.read_text())]


def unknown(command: str) -> set[str]:
    """What of a command the program does not have: its name, or options."""
    _, name, *rest = shlex.split(command)
    if name not in COMMANDS:
        return {name}
    known = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    return {word.partition("=")[0] for word in rest if word.startswith("--")} - known


def test_a_command_in_a_sentence_exists():
    commands = [(page, text) for page, text in INLINE if text.startswith("fedpart ")]
    assert commands
    assert not [(page, text, wrong) for page, text in commands if (wrong := unknown(text))]


def test_files_that_are_named_exist():
    rooms = r"(?:fedpart|simulations|benchmarks|tests|server|client|docs)/[\w./*-]*[\w*/]"
    named = [(page, path) for page, text in INLINE for path in re.findall(rf"(?<![\w/.]){rooms}", text)]
    assert named and not [(page, path) for page, path in named if not list(ROOT.glob(path))]


LINKING = [*PAGES[:2], *(page for page in sorted(DOCS.rglob("*.md")) if "generated" not in page.parts)]


def test_links_lead_somewhere():
    links = [
        (page, target)
        for page in LINKING
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if not target.startswith("http")
    ]
    assert links
    assert not [f"{page.name}: {target}" for page, target in links if not (page.parent / target).exists()]


def test_a_users_file_has_at_most_25_lines_and_a_federation_of_several_sizes_30():
    files = {b.file: b.text for b in BLOCKS if b.page.endswith("your_model.md") and b.file}
    assert set(files) == {"frozen_images.py", "lora_text.py", "tables.py", "series.py", "shapes.py"}
    assert all(len(text.splitlines()) <= 25 for text in files.values())
    first = blocks(DOCS / "guides" / "devices.md")[0].text
    assert "federate(" in first and "architectures=" in first and len(first.splitlines()) <= 30
