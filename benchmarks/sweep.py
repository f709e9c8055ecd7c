"""A sweep of a thousand rows: checked and shown, and submitted as held arrays of a real Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import ROOT, Measurement

ROWS = 1000


def run() -> list[Measurement]:
    """Whole processes, once each, as a person calls them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = ", ".join(f"{number}e-5" for number in range(1, ROWS // 10 + 1))
        grid = f"grid:\n  peak_learning_rate: [{rates}]\n  seed: {list(range(10))}\n"
        (folder / "sweep.yaml").write_text(f"base: {{no_wandb: true}}\n{grid}")
        dry, _ = sweep(folder, {}, "--dry_run", "--cluster", "local")
        measurements = [
            measurement("--dry_run", dry, "checked with the real parser, compared with the runs there are, shown")
        ]
        (folder / "later.slurm").write_text("#SBATCH --begin=now+10hours\n")  # nothing of it shall run
        with slurm_cluster() as environment:
            if environment is None:
                print("sweep: not submitted, as make slurm-up does not work here", file=sys.stderr)
                return measurements
            environment |= {"EBT_HEADERS": str(folder)}
            submitted, output = sweep(folder, environment, "--header", "later")
            again, _ = sweep(folder, environment, "--header", "later")
            arrays = re.findall(r"^array (\d+)", output, re.MULTILINE)
            subprocess.run(["scancel", *arrays], env={**os.environ, **environment}, check=True)
    measurements.append(
        measurement("as arrays", submitted, "a folder with script and code for each; held, noted, released")
    )
    return [*measurements, measurement("applied again", again, "all of them wait, so nothing is submitted")]


def measurement(name: str, seconds: float, note: str) -> Measurement:
    return Measurement(f"sweep of {ROWS:,} rows, {name}", seconds, "s", note)


def sweep(folder: Path, variables: dict[str, str], *words: str) -> tuple[float, str]:
    """Seconds, and what was printed."""
    command = [sys.executable, "-m", "launch", "sweep", str(folder / "sweep.yaml"), "--logs_dir", str(folder / "logs")]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, *words], cwd=ROOT, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - start, done.stdout


@contextmanager
def slurm_cluster() -> Iterator[dict[str, str] | None]:
    """Environment variables for the cluster of `make slurm-up`, started if it is not up; None where it cannot be."""
    command = [sys.executable, "-m", "tests.slurm.cluster"]
    configuration = Path("/tmp/ebt-slurm/slurm.conf")
    is_up = configuration.exists()
    if not is_up and subprocess.run([*command, "up"], cwd=ROOT, capture_output=True).returncode:
        subprocess.run([*command, "down"], cwd=ROOT, capture_output=True)
        yield None
        return
    try:
        yield {"SLURM_CONF": str(configuration)}
    finally:
        if not is_up:
            subprocess.run([*command, "down"], cwd=ROOT, check=True)
