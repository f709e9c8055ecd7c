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
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ROWS = 1000


def run() -> list[dict[str, Any]]:
    """Rows of name, value, unit and note; whole processes, once each, as a person calls them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = ", ".join(f"{number}e-5" for number in range(1, ROWS // 10 + 1))
        grid = f"grid:\n  peak_learning_rate: [{rates}]\n  seed: {list(range(10))}\n"
        (folder / "sweep.yaml").write_text(f"base: {{no_wandb: true}}\n{grid}")
        dry, _ = sweep(folder, {}, "--dry_run", "--cluster", "local")
        rows = [row("--dry_run", dry, "checked with the real parser, compared with the runs there are, shown")]
        (folder / "later.slurm").write_text("#SBATCH --begin=now+10hours\n")  # nothing of it shall run
        with a_cluster() as environment:
            if environment is None:
                print("sweep: not submitted, as make slurm-up does not work here", file=sys.stderr)
                return rows
            environment |= {"EBT_HEADERS": str(folder)}
            submitted, said = sweep(folder, environment, "--header", "later")
            again, _ = sweep(folder, environment, "--header", "later")
            arrays = re.findall(r"^array (\d+)", said, re.MULTILINE)
            subprocess.run(["scancel", *arrays], env={**os.environ, **environment}, check=True)
    rows.append(row("as arrays", submitted, "a folder with script and code for each; held, noted, released"))
    return [*rows, row("applied again", again, "all of them wait, so nothing is submitted")]


def row(name: str, value: float, note: str) -> dict[str, Any]:
    return {"name": f"sweep of {ROWS:,} rows, {name}", "value": value, "unit": "s", "note": note}


def sweep(folder: Path, more: dict[str, str], *words: str) -> tuple[float, str]:
    """Seconds, and what was printed."""
    command = [sys.executable, "-m", "launch", "sweep", str(folder / "sweep.yaml"), "--logs_dir", str(folder / "logs")]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, *words], cwd=ROOT, env={**os.environ, **more}, stdout=subprocess.PIPE, text=True, check=True
    )
    return time.perf_counter() - start, done.stdout


@contextmanager
def a_cluster() -> Iterator[dict[str, str] | None]:
    """That of `make slurm-up`, which is left as it was; None where there can be none."""
    door = [sys.executable, "-m", "tests.slurm.cluster"]
    configuration = Path("/tmp/ebt-slurm/slurm.conf")
    is_up = configuration.exists()
    if not is_up and subprocess.run([*door, "up"], cwd=ROOT, capture_output=True).returncode:
        subprocess.run([*door, "down"], cwd=ROOT, capture_output=True)
        yield None
        return
    try:
        yield {"SLURM_CONF": str(configuration)}
    finally:
        if not is_up:
            subprocess.run([*door, "down"], cwd=ROOT, check=True)
