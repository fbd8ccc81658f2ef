"""A standard output that cannot be written, of the command as a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
from tiny import tiny_file

from simulations.folders.run_directory import read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full"),
]


def ended(*arguments: str | Path, full: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from simulations.cli.main import main; main()", *map(str, arguments)]
    with open("/dev/full", "w") as device:
        outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {full: device}
        return subprocess.run(command, text=True, check=False, timeout=200, **outputs)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["configs"], ["run", "--help"]])
def test_a_full_standard_output_is_one_sentence(arguments: list[str]) -> None:
    result = ended(*arguments, full="stdout")
    assert result.returncode == 1 and len(result.stderr.splitlines()) == 1
    assert "The standard output cannot be written (No space left on device)" in result.stderr


def test_a_full_standard_output_of_a_run_is_not_its_folder(tmp_path: Path) -> None:
    config, out = tiny_file(tmp_path, rounds=1), tmp_path / "out"
    result = ended("run", config, "--out", out, full="stdout")
    assert result.returncode == 1 and "standard output cannot be written" in result.stderr
    assert "--out" not in result.stderr and "Traceback" not in result.stderr
    resumed = ended("run", "--resume", out, full="stdin")
    assert resumed.returncode == 0 and len(read_metrics(out)) == 1


def test_a_full_standard_error_leaves_the_output_and_ends_with_a_status() -> None:
    result = ended("run", "no-such-configuration", full="stderr")
    assert result.returncode == 1 and result.stdout == ""
    assert ended("configs", full="stderr").returncode == 0
