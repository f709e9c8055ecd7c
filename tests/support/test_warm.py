"""Programs in a warm process behave as in a new one."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import warm

pytestmark = pytest.mark.usefixtures("forks")
TELLS = """
import json, os, sys, atexit
atexit.register(print, "bye", flush=True)
print(json.dumps([sys.argv, os.getcwd(), os.environ.get("EBT_WORD"), sys.stdin.read(), __name__, sys.path[0]]))
print("problem", file=sys.stderr)
sys.exit(7)
"""


@pytest.fixture
def forks() -> None:
    if warm.server() is None:
        pytest.skip("a process cannot be forked safely here")


def outcome(run: Any, command: list[str], folder: Path, **options: Any) -> tuple[int, Any, str, str]:
    own = {**os.environ, "EBT_WORD": "word"}
    done = run(command, cwd=folder, env=own, input="typed", capture_output=True, text=True, timeout=60, **options)
    first, last = done.stdout.splitlines()
    return done.returncode, json.loads(first), last, done.stderr


@pytest.mark.parametrize("start", [["-c", TELLS], ["program.py"], ["-m", "package"]])
def test_arguments_streams_and_status(tmp_path: Path, start: list[str]) -> None:
    (tmp_path / "program.py").write_text(TELLS)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(TELLS)
    command = [sys.executable, *start, "--flag", "two words"]
    assert outcome(warm.run, command, tmp_path) == outcome(subprocess.run, command, tmp_path)


def test_an_error_that_nobody_catches() -> None:
    done = warm.run([sys.executable, "-c", "1 / 0"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("ZeroDivisionError: division by zero\n")
    with pytest.raises(subprocess.CalledProcessError):
        warm.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_signals_reach_it(number: signal.Signals) -> None:
    code = "import os, time; print(os.getpid(), os.getsid(0), flush=True); time.sleep(60)"
    with warm.start([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split() == [str(process.pid)] * 2
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(30) == -number == process.poll()


def test_ctrl_c_and_a_timeout() -> None:
    code = "import time\ntry: print('ready', flush=True); time.sleep(60)\nexcept KeyboardInterrupt: exit(130)"
    with warm.start([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.2)


def test_libraries_are_there_and_the_project_is_not() -> None:
    code = "import os, sys; print('torch' in sys.modules, 'config' in sys.modules, len(os.listdir('/proc/self/task')))"
    assert warm.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False 1\n"


def test_variables_that_libraries_read_start_a_new_process() -> None:
    command = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    done = warm.run(command, env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_it_ends_with_the_one_who_asked() -> None:
    process = warm.start([sys.executable, "-c", "import time; time.sleep(60)"])
    process_file = os.pidfd_open(process.pid)
    assert isinstance(process, warm.Process)
    process.connection.close()
    assert select.select([process_file], [], [], 30)[0]
    process.returncode = -signal.SIGKILL
    os.close(process_file)


def test_without_a_server_programs_start_in_new_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(warm, "server", lambda: None)
    (tmp_path / "program.py").write_text(TELLS)
    command = [sys.executable, "program.py", "--flag"]
    assert outcome(warm.run, command, tmp_path) == outcome(subprocess.run, command, tmp_path)
    assert isinstance(warm.start([sys.executable, "-c", ""]), subprocess.Popen)


def test_a_server_that_ends_at_once_is_not_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(warm, "_server", None)
    assert warm.server() is None
    ended = warm._server
    assert warm.server() is None and warm._server is ended
