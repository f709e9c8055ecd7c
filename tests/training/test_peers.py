"""The processes of a run keep in touch; here as threads and pipes, in tests/slurm/test_processes.py as real ones."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from config import parse_command_line
from runs.ranks import Step
from training.devices import SrunEnvironment, check_world, trainer_devices
from training.hang_watch import HangWatch, is_debugged, own_stacks
from training.peers import Crashed, FirstProcess, OtherProcess, Peers, Timings, is_lost_connection

STEP = Step(tasks=2, nodes=2, rank=0, local_rank=0, node=0, first_node="localhost")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FirstProcess, OtherProcess]:
    monkeypatch.setenv("MASTER_PORT", "")
    first = FirstProcess(STEP, tmp_path, Timings(exit=0.1))
    assert json.loads((tmp_path / "processes.json").read_bytes())["port"] == first.server.getsockname()[1]
    others: list[OtherProcess] = []

    def other() -> None:
        others.append(OtherProcess(replace(STEP, rank=1), tmp_path))
        others[0].connect()

    thread = threading.Thread(target=other)
    thread.start()
    first.connect()
    thread.join()
    return first, others[0]


def soon(condition: Any) -> bool:
    deadline = time.monotonic() + 5
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_stacks_are_sent(pair: tuple[FirstProcess, OtherProcess]) -> None:
    ((name, text),) = pair[0].stacks().items()
    assert name.startswith("task 1 on ") and "test_peers.py" in text


def test_a_connection_without_the_token_is_refused(tmp_path: Path) -> None:
    first = FirstProcess(STEP, tmp_path, Timings(join=0.5))
    port = first.server.getsockname()[1]
    with socket.create_connection(("localhost", port)) as stranger:
        stranger.sendall(b'{"rank": 1, "token": "guessed"}\n')
        with pytest.raises(Crashed, match="task 1 of 2 never came"):
            first.connect()
    assert not (tmp_path / "processes.json").exists()


def test_process_0_never_came(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text('{"job": "of another start", "address": "localhost", "port": 1}')
    with pytest.raises(Crashed, match="task 0 of 2 never came"):
        OtherProcess(replace(STEP, rank=1), tmp_path, Timings(join=0.5))


RESET = RuntimeError("[enforce fail] Connection closed by peer [127.0.0.1]:33301")


def test_who_died_is_named(pair: tuple[FirstProcess, OtherProcess]) -> None:
    first, other = pair
    events: list[str] = []
    first.stuck = events.append
    other.leaving = True  # the thread of the other one is in this process, too
    other.connection.close()
    crash = first.crash(RESET)
    assert crash is not None and crash.status == 75
    assert crash.cause.startswith("crashed: task 1 on ") and crash.cause.endswith(" died")
    assert soon(lambda: events), "and one that waits for it in C++ is told"
    assert first.crash(ValueError("its own")) is None


def test_an_error_of_another_process_is_its_own(pair: tuple[FirstProcess, OtherProcess]) -> None:
    first, other = pair
    other.leave("error: ValueError")
    crash = first.crash(RESET)
    assert crash is not None and (crash.cause, crash.status) == ("error: ValueError", 1)
    assert "task 1 on " in str(crash) and "goes on" not in str(crash)


def test_the_others_wait_for_process_0(pair: tuple[FirstProcess, OtherProcess]) -> None:
    first, other = pair
    done = threading.Thread(target=other.leave)
    done.start()
    assert soon(lambda: 1 in first.causes) and done.is_alive()
    first.leave()
    time.sleep(0.1)
    assert done.is_alive(), "until it is gone"
    first.connections[1].close()
    done.join(5)
    assert not done.is_alive()
    assert first.first_end() == ""


@pytest.mark.parametrize(
    ("error", "echo"),
    [
        (RESET, True),
        (RuntimeError("NCCL communicator was aborted on rank 0."), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("gloo"), False),
    ],
)
def test_echoes(error: Exception, echo: bool) -> None:
    assert is_lost_connection(error) is echo
    assert Peers().crash(error) is None, "alone there is nobody to blame"


class Ended(Exception):
    pass


def watch(minutes: float, monkeypatch: pytest.MonkeyPatch, poll_seconds: float = 0.01) -> HangWatch:
    hang_watch = HangWatch(minutes, Peers(), lambda cause: None, poll_seconds)

    def ended(silent: float) -> None:
        raise Ended

    monkeypatch.setattr(hang_watch, "give_up", ended)
    return hang_watch


def test_a_run_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    hang_watch = watch(0.001, monkeypatch)
    for _ in range(3):
        hang_watch.beat()
    with pytest.raises(Ended):
        hang_watch.watch()


def test_a_debugger_is_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    hang_watch = watch(0.0001, monkeypatch)
    hang_watch.beats = 2
    hang_watch.beat()
    threading.Thread(target=hang_watch.watch, daemon=True).start()
    here = threading.get_ident()
    code = compile("here(hang_watch)", "/usr/lib/python3/pdb.py", "exec")
    answers: list[bool] = []
    exec(code, {"here": lambda watch: answers.append(is_debugged(here)), "hang_watch": hang_watch})
    assert answers == [True] and not is_debugged(here) and not is_debugged(None)
    hang_watch.last_heartbeat = 0.0


def test_patience_is_measured() -> None:
    hang_watch = HangWatch(None, Peers(), lambda cause: None)
    assert hang_watch.allowed_seconds == 3600, "before the first sign"
    for _ in range(3):
        hang_watch.beat()
    assert hang_watch.allowed_seconds == 1200
    hang_watch.longest = 120.0
    assert hang_watch.allowed_seconds == 2400
    hang_watch = HangWatch(2.0, Peers(), lambda cause: None)
    assert hang_watch.allowed_seconds == 3600, "the first step may be compiled, whatever was chosen"
    hang_watch.beats = 3
    assert hang_watch.allowed_seconds == 120


def test_a_suspended_process_is_not_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm suspends a job for hours; when it goes on, that time does not count."""
    hang_watch = watch(0.05, monkeypatch, poll_seconds=1.0)  # hung after three seconds
    clock = [100.0]
    naps = iter([0.01, 5000.0, 0.01, 0.01, 4.0])  # of which the second was a suspension

    def sleep(seconds: float) -> None:
        clock[0] += next(naps)

    monkeypatch.setattr("training.hang_watch.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("training.hang_watch.time.sleep", sleep)
    hang_watch.beats = 2
    hang_watch.beat()
    with pytest.raises(Ended):
        hang_watch.watch()
    assert next(naps, None) is None, "not before it is silent while it could have spoken"


def test_own_stacks() -> None:
    assert "test_own_stacks" in own_stacks()


@pytest.mark.parametrize(("visible", "devices"), [(1, ["cuda:0", "cuda:0"]), (2, ["cuda:0", "cuda:1"])])
def test_gpus_of_a_step(visible: int, devices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With --gpus-per-task each process sees one GPU, with --gpus-per-node all; it is one run of two either way."""
    import pytorch_lightning as pl

    step = Step(tasks=2, nodes=1, rank=1, local_rank=1, node=0, first_node="n1")
    monkeypatch.setattr("training.devices.srun_step", lambda: step)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr("lightning_fabric.accelerators.cuda.num_cuda_devices", lambda: visible)
    flags = trainer_devices(parse_command_line([]))
    trainer = pl.Trainer(**flags, plugins=[SrunEnvironment(step)], logger=False, enable_checkpointing=False)
    assert (trainer.world_size, trainer.global_rank) == (2, 1)
    strategy: Any = trainer.strategy
    assert [str(device) for device in strategy.parallel_devices] == devices
    check_world(trainer)
    monkeypatch.setattr("training.devices.srun_step", lambda: replace(step, tasks=4))
    with pytest.raises(Exception, match="4 processes were started and this is number 1, but the run would have 2"):
        check_world(trainer)
