"""Shared by all tests: a small text of the machine's own, a cache of the tests' own, and train_model.py to call."""

from __future__ import annotations

import os
import pydoc_data.topics
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import warm

# A shell starts what it puts into the background deaf to Ctrl-C, and so would be all that the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
TINY = (
    *("--model_name", "baseline_transformer", "--no_wandb"),
    *("--model_size", "4xs", "--context_length", "32", "--batch_size_per_device", "4"),
    *("--max_steps", "6", "--warm_up_steps", "2", "--log_every_n_steps", "1"),
    *("--limit_val_batches", "2", "--val_check_interval", "1000"),
)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Token caches of the tests never touch the user's; one thread a process, as tests run side by side."""
    cache = tmp_path_factory.mktemp("cache")
    os.environ["EBT_CACHE"] = str(cache)
    os.environ["OMP_NUM_THREADS"] = "1"
    return cache


@pytest.fixture(autouse=True)
def denormals_come_back() -> Iterator[None]:
    """Training and loading a model flush denormal numbers in this process, with which hypothesis makes no floats."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text files, 150 kB of English."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, (_, text) in enumerate(sorted(pydoc_data.topics.topics.items())):
        if number < 60:
            (folder / f"{number:02}.txt").write_text(text[:4000])
    return folder


class TrainCommand:
    """`python train_model.py` with tiny settings, in a logs folder of the test's own."""

    def __init__(self, corpus: Path, logs: Path) -> None:
        self.corpus = corpus
        self.logs = logs
        self.tiny = list(TINY)
        self.cold = False  # in a process of its own from the first import on; see tests/support/warm.py

    def without(self, *flags: str) -> TrainCommand:
        """The same command, leaving these of its tiny settings to the program."""
        other = TrainCommand(self.corpus, self.logs)
        other.cold = self.cold
        for flag in flags:
            index = other.tiny.index(flag)
            del other.tiny[index : index + 2]
        return other

    def command(self, *flags: str, script: str = "train_model.py") -> list[str]:
        data = ("--dataset_name", "text", "--dataset_dir", str(self.corpus))
        return [sys.executable, script, *self.tiny, *data, "--logs_dir", str(self.logs), *flags]

    def __call__(self, *flags: str, status: int = 0, script: str = "train_model.py") -> str:
        """Run it to its end and return all it printed; `status` is what it must exit with."""
        run = subprocess.run if self.cold else warm.run
        command = self.command(*flags, script=script)
        done = run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        output = done.stdout + done.stderr
        assert done.returncode == status, f"exit status {done.returncode}, not {status}:\n{output}"
        return output

    def start(self, *flags: str) -> warm.Process | subprocess.Popen[str]:
        """Begin it, and leave it to the test; what it prints is lost."""
        begin = partial(subprocess.Popen, start_new_session=True) if self.cold else warm.start
        return begin(self.command(*flags), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def with_fault(self, fault: str, *flags: str, status: int = 0) -> str:
        """The same after running `fault`, code that plants what a flag is there to find."""
        return self(*flags, status=status, script=str(self.fault_script(fault)))

    def fault_script(self, fault: str) -> Path:
        self.logs.mkdir(parents=True, exist_ok=True)
        script = self.logs / "with_fault.py"
        start = "import os, sys\nsys.path.insert(0, os.getcwd())\n"
        end = "\nimport train_model\nif __name__ == '__main__':\n    sys.exit(train_model.main(sys.argv[1:]))\n"
        script.write_text(start + textwrap.dedent(fault) + end)
        return script

    def ebt(self, *flags: str) -> TrainCommand:
        """The same command for the energy-based model, with these flags of its own."""
        other = self.without("--model_name")
        other.tiny += ("--model_name", "ebt", *flags)
        return other

    @property
    def run_folder(self) -> Path:
        (folder,) = (self.logs / "runs").iterdir()
        return folder


@pytest.fixture
def train_command(corpus: Path, tmp_path: Path) -> TrainCommand:
    return TrainCommand(corpus, tmp_path / "logs")
