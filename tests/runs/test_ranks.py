"""Which processes make a run, by the variables that Slurm sets; tests/slurm/test_processes.py has the real ones."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from core.errors import UserError
from runs import RunFolder
from runs.ranks import check_processes, first_node_of, srun_step

STEP = {
    **{"SLURM_JOB_ID": "17", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "n[3-4]"},
    **{"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_NTASKS": "4", "EBT_JOB_RUN_DIR": "run"},
}


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [name for name in os.environ if name.startswith(("SLURM_", "EBT_"))]:
        monkeypatch.delenv(name)

    def set_variables(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


def sentence(*flags: str) -> str:
    with pytest.raises(UserError) as refused:
        check_processes(parse_command_line([*flags]))
    return str(refused.value)


def test_a_step(slurm: Any) -> None:
    assert srun_step() is None
    slurm(**STEP)
    step = srun_step()
    assert step is not None
    assert (step.tasks, step.nodes, step.rank, step.local_rank, step.node) == (4, 2, 2, 0, 1)
    assert (step.first_node, step.tasks_per_node) == ("n3", 2)
    check_processes(parse_command_line([]))
    slurm(SLURM_JOB_NAME="bash", SLURM_PTY_PORT="4000")  # whatever the job is called
    assert srun_step() == step


def test_one_task_is_alone(slurm: Any) -> None:
    slurm(**STEP | {"SLURM_STEP_NUM_TASKS": "1"})
    assert srun_step() is None
    check_processes(parse_command_line(["--cpu_processes", "2"]))


@pytest.mark.parametrize(
    ("variables", "flags", "words"),
    [
        ({"SLURM_STEP_NUM_TASKS": "3"}, (), "srun started 3 processes on 2 nodes, not the same number on each"),
        ({}, ("--cpu_processes", "3"), "--cpu_processes is 3: srun started 2 processes on each node"),
        ({}, ("--gpus", "1"), "--gpus is 1: srun started 2 processes on each node"),
        ({"SLURM_GPUS_ON_NODE": "4"}, (), "this job has 4 GPUs on a node and 2 processes there, so some would stay id"),
        ({"SLURM_GPUS_ON_NODE": "1"}, (), "this job has 1 GPUs on a node and 2 processes there, so some would have to"),
        ({"SLURM_GPUS_ON_NODE": "1"}, ("--allow_idle_gpus",), "so some would have to be shared"),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_GPUS_ON_NODE": "4"}, (), "ask Slurm for --ntasks-per-node=4, one proc"),
    ],
)
def test_what_is_refused(slurm: Any, variables: dict[str, str], flags: tuple[str, ...], words: str) -> None:
    slurm(**STEP | variables)
    assert words in sentence(*flags)


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, ()),
        ({"SLURM_GPUS_ON_NODE": "4"}, ("--allow_idle_gpus",)),
        ({"SLURM_GPUS_ON_NODE": "4"}, ("--gpus", "none")),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_GPUS_ON_NODE": "4"}, ("--gpus", "4")),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_GPUS_ON_NODE": "4", "SLURM_PTY_PORT": "4000"}, ()),
    ],
)
def test_what_is_not(slurm: Any, variables: dict[str, str], flags: tuple[str, ...]) -> None:
    slurm(**STEP | variables)
    check_processes(parse_command_line([*flags]))


def test_without_srun(slurm: Any) -> None:
    slurm(SLURM_JOB_ID="17", SLURM_NTASKS="2", SLURM_PROCID="0")
    assert "this job has 2 tasks, and train_model.py was started once, without srun" in sentence()


def test_a_process_that_does_not_know_its_folder(slurm: Any, tmp_path: Any) -> None:
    slurm(LOCAL_RANK="1")
    with pytest.raises(UserError, match=r"this is process 1 of a run and does not know the run's folder \(EBT_RUN_DIR"):
        RunFolder.for_run(parse_command_line(["--logs_dir", str(tmp_path)]))


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n1", "n1"), ("gpu[003-007,9],big1", "gpu003"), ("a1,b2", "a1"), ("r1n[01,03]-ib", "r1n01-ib"), ("", "")],
)
def test_the_first_of_a_list_of_nodes(nodes: str, first: str) -> None:
    assert first_node_of(nodes) == first


@given(st.text(max_size=20))
def test_no_list_of_nodes_is_an_error(nodes: str) -> None:
    assert len(first_node_of(nodes)) <= len(nodes)
