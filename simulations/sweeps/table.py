"""Table: rows of settings, a run for each row and seed, and what their summaries say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fedpart.checks import require
from simulations.config.load import TableFile, read_table
from simulations.config.yaml_files import key_of
from simulations.errors import ConfigError
from simulations.folders.cell import Cell, folder_name, refuse_other_sweep, row_folder
from simulations.folders.contents import TABLE
from simulations.folders.data_files import KnownData
from simulations.folders.run_directory import holds_run, make_folder, read_summary, saved_config
from simulations.results import tables
from simulations.results.curves import Run
from simulations.results.method_scores import AT_BYTES, at_equal_bytes
from simulations.results.records import HOME, read_records, record_name, write_record
from simulations.results.scores import DASH, counted
from simulations.running.precision import choose_precision
from simulations.sweeps.cell_runner import CellRunner, summaries


@dataclass(frozen=True)
class Found:
    """What the runs of a table amount to."""

    file: TableFile
    summaries: dict[str, list[dict[str, Any]]]
    lengths: Mapping[str, str] = field(default_factory=dict)  # of a row's runs, where they may differ
    machines: Sequence[str] = ()

    def cells(self) -> tuple[list[str], list[list[str]]]:
        beside_of = dict.fromkeys(heading for row in self.file.rows.values() for heading in row.given)
        head = ["", "seeds", *(["length"] if self.lengths else []), *self.file.columns, *beside_of]
        rows = []
        for label, known in self.summaries.items():
            texts = [tables.text_of(heading, path, known) for heading, path in self.file.columns.items()]
            beside = [self.file.rows[label].given.get(heading, "") for heading in beside_of]
            length = [self.lengths.get(label, "not run")] if self.lengths else []
            rows.append([label, str(len(known)), *length, *texts, *beside])
        return head, rows

    @property
    def caption(self) -> str:
        every = [summary for of_row in self.summaries.values() for summary in of_row]
        commits = sorted({str(summary["git_commit"])[:7] for summary in every if summary.get("git_commit")})
        made = f"; commit {', '.join(commits)}" if commits else ""
        return f"{tables.CAPTION}{made}{'; on ' * bool(self.machines)}{', '.join(self.machines)}"

    def table(self) -> Table:
        head, rows = self.cells()
        table = tables.terminal_table(["method", "seeds"], self.file.title, self.caption, padding=1)
        table.add_column("found", justify="left")
        for label, seeds, *texts in rows:
            known = (
                f"{name}: {text}" for name, text in zip(head[2:], texts, strict=True) if text.strip(DASH)
            )
            table.add_row(*map(Text, (label, seeds, tables.LF.join(known))))
        return table

    def empty(self) -> list[str]:
        """Headings of columns without any number."""
        known = {
            heading: [each for rows in self.summaries.values() for each in tables.estimates_at(path, rows)]
            for heading, path in self.file.columns.items()
        }
        return [heading for heading, estimates in known.items() if not any(estimates)]

    def write(self, out: Path) -> None:
        """Write ``table.md``, and ``table.csv`` with the numbers as the summaries have them."""
        lines = [f"# {self.file.title}", "", f"{self.caption[0].upper()}{self.caption[1:]}.", ""]
        (out / TABLE).write_text(
            "\n".join([*lines, *tables.markdown_table(*self.cells())]) + "\n", encoding="utf-8"
        )
        tables.write_csv(out / "table.csv", [self._flat(label) for label in self.summaries])

    def _flat(self, label: str) -> dict[str, Any]:
        summaries, flat = self.summaries[label], {}
        for path in self.file.columns.values():
            each = tables.estimates_at(path, summaries)
            flat |= {path if len(each) == 1 else f"{path}.{i}": estimate for i, estimate in enumerate(each)}
        return (
            {"row": label, "seeds": len(summaries)}
            | tables.number_columns(flat)
            | self.file.rows[label].given
        )


def _read(file: Path) -> TableFile:
    table = read_table(file)
    for heading in table.columns:
        tables.check_unit(heading, str(file))
    return table


def recorded_table(file: Path, out: Path, scale: str | None, runner: CellRunner, home: Path = HOME) -> Found:
    """The table of the records in ``home``, and of runs in ``out`` that are finished beside those."""
    table, records = _read(file), read_records(file.stem, scale, home)
    for label in table.rows:
        known = {record["seed"] for record in records.get(label, [])}
        for seed in table.seeds:
            folder = row_folder(out, label, seed)
            summary = read_summary(folder) if seed not in known and holds_run(folder) else None
            if summary is not None:
                length = saved_config(folder).length
                made = {"seed": seed, "length": length, "machine": "this machine", "summary": summary}
                records.setdefault(label, []).append(made)
    lengths = {row: sorted(record["length"] for record in runs) for row, runs in records.items()}
    ends = {row: dict.fromkeys((known[0], known[-1])) for row, known in lengths.items()}
    texts = {row: " to ".join(f"{length:,}" for length in known) for row, known in ends.items()}
    require(texts, f"No run of {file} is recorded in {home}, nor finished in {out}.", ConfigError)
    every = {label: [record["summary"] for record in records.get(label, [])] for label in table.rows}
    machines = {record["machine"] for label in table.rows for record in records.get(label, [])}
    outcome = Found(table, every, texts, sorted(machines))
    refuse_other_sweep(out, TABLE)
    make_folder(out)
    outcome.write(out)
    runner.conclude(outcome, [f"The table: {out / TABLE}"], [], 0)
    return outcome


def run_table(
    file: Path, overrides: list[str], out: str | Path, runner: CellRunner | None = None, *,
    scale: str | None = None, labels: Sequence[str] = (), read_only: bool = False,
    records: Path | None = None,
) -> Found:  # fmt: skip
    """Run what is not finished, all rows of a seed before the next seed; print and write the table.
    ``records``: folder in which finished runs leave a record; those that have one are not made."""
    out, runner, table = Path(out), runner or CellRunner(), _read(file)
    refuse_other_sweep(out, TABLE)
    for label in labels:
        if label not in table.rows:
            raise ConfigError(f"{file} has no row {label!r}; its rows are {', '.join(table.rows)}.")
    if any(key_of(override) == "seed" for override in overrides):
        raise ConfigError(f"The seeds are those of {file}: change them in a copy of it, and leave seed out.")
    once = len({*table.seeds}) == len(table.seeds)
    require(once, f"{file} names a seed twice, which would count as two; name every seed once.", ConfigError)
    names = {label: folder_name(label).lower() for label in table.rows}
    for label, name in names.items():
        if not name or list(names.values()).count(name) > 1:
            raise ConfigError(f"{file}: the row {label!r} makes no folder of its own; name it otherwise.")
    cells, identities = list[Cell](), dict[Path, dict[str, Any]]()
    for seed, label in product(table.seeds, names):
        config = table.configured(label, seed, file, out, scale, overrides)
        if (made := holds_run(folder := row_folder(out, label, seed))) or not read_only:
            config = choose_precision(config, folder if made else out)  # one for all, on another machine too
            cells.append(Cell(f"{label}, seed {seed}", config, folder))
            identities[folder] = {"table": file.stem, "scale": scale, "row": label, "seed": seed}
    asked = {names[label] for label in labels or names if not read_only}
    wanted = [cell for cell in cells if cell.folder.parent.name in asked]
    known = KnownData()
    for cell in cells:
        if cell not in wanted:  # other settings are refused before anything is run
            cell.state(known)
    if records is not None:
        wanted = [cell for cell in wanted if not (records / record_name(**identities[cell.folder])).exists()]
    try:
        failed = runner.complete(wanted)
    finally:
        for cell in (cell for cell in wanted if records is not None and cell.finished()):
            write_record(records, cell, identities[cell.folder])
    by_name = summaries(cells)
    for path in [path for path in table.columns.values() if path.endswith(AT_BYTES)]:
        done = [cell for cell in cells if cell.finished()]
        runs, key = [Run.load(cell.folder) for cell in done], path.removesuffix(AT_BYTES)
        scores = at_equal_bytes(runs, key, len(names))
        left = {name: iter(told) for name, told in by_name.items()}
        for cell, score in zip(done, scores, strict=True):
            next(left[cell.folder.parent.name])[path] = score
    outcome = Found(table, {label: own for label, name in names.items() if (own := by_name.get(name))})
    if not outcome.summaries and not failed and records is None:
        raise ConfigError(f"No run of {file} is finished in {out}; leave --finished out to run them.")
    remarks = []
    if outcome.summaries:
        make_folder(out, *(cell.config for cell in cells))
        outcome.write(out)
        runs = counted(sum(map(len, outcome.summaries.values())), "run")
        remarks = [f"{runs}; the table: {out / TABLE}"]
        remarks += [f"No run has a number for {heading!r}." for heading in outcome.empty()]
    runner.conclude(outcome if remarks else None, remarks, failed, len(wanted))
    return outcome
