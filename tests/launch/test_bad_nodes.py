"""Which node ends attempts: two in a row there, none elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launch.__main__ import main
from launch.bad_nodes import bad_node
from runs.run import all_runs
from tests.launch.run_folders import Programs, began, ended, logs, programs, write_run

__all__ = ["logs", "programs"]
DAY = 86400


def write_ends(logs: Path, *ends: tuple[str, str] | tuple[str, str, float]) -> None:
    """A run an end: node (of NODES/NODE, the one that ended it), cause, and how long ago in days; the oldest first."""
    for number, (node, cause, *days) in enumerate(ends, start=1):
        ago = (days[0] if days else 0.5) * DAY - number
        nodes, _, ended_on = node.partition("/")
        more: dict[str, Any] = {"ended_on": ended_on, "ended_rank": 1} if ended_on else {}
        rows = began(1, ago + 60, nodes=nodes, job="7"), ended(1, cause, ago, **more)
        write_run(logs, f"r{number}", *rows, number=number)


@pytest.mark.parametrize(
    ("ends", "bad"),
    [
        ([("n1", "crashed: SIGBUS"), ("n1", "hung")], "n1"),
        ([("n1", "crashed: SIGBUS"), ("n2", "finished"), ("n1", "node failure")], "n1"),
        ([("n1", "hung")], None),
        ([("n1", "hung"), ("n1", "hung"), ("n2", "killed")], None),  # elsewhere, too
        ([("n1", "hung"), ("n1", "hung"), ("n1", "finished")], None),  # it works again
        ([("n1", "hung"), ("n1", "hung"), ("n2", "error: ValueError")], "n1"),  # that one is the run's own
        ([("n1", "hung", 9.0), ("n1", "hung")], None),  # long ago
        ([("n[1-2]/n2", "killed"), ("n[2-3]/n2", "killed")], "n2"),
        ([("n[1-2]", "killed"), ("n[1-2]", "killed")], None),  # nobody knows which
        ([("n1", "error: RuntimeError"), ("n1", "error: RuntimeError")], None),  # it may fail anywhere
        ([("n1", "error: RuntimeError"), ("n2", "finished"), ("n1", "out of memory")], "n1"),
        ([("n1", "error: X"), ("n2", "error: X"), ("n1", "error: X")], None),
        ([("n1", "refused: no"), ("n2", "finished"), ("n1", "refused: no")], None),
        ([("n1", "time limit"), ("n1", "preempted"), ("n1", "cancelled")], None),
    ],
)
def test_a_node_is_named(logs: Path, ends: list[Any], bad: str | None) -> None:
    write_ends(logs, *ends)
    node = bad_node(all_runs(logs))
    assert (node.name if node else None) == bad


def test_status_and_why_say_so_and_name_the_command(logs: Path, programs: Programs, capsys: Any) -> None:
    programs.queue()
    write_ends(logs, ("n2", "finished"), ("n1", "hung"), ("n1", "crashed: SIGBUS"))
    run = next((logs / "runs").glob("r3_*"))
    runs = "r2_20261116-000002_000002, r3_20261116-000003_000003"
    output = f"n1 ended 2 attempts in 7 days ({runs}), no other node did any: python -m launch requeue"
    for words in ([], ["r1"]):
        assert main(["status", "--logs_dir", str(logs), *words]) == 0
        assert f"{output} RUN --exclude_nodes n1" in " ".join(capsys.readouterr().out.split())
    (run / "job_script.slurm").write_text(f"#SBATCH\nexport EBT_JOB_RUN_DIR={run}\n")
    assert main(["why", "--logs_dir", str(logs), "r3"]) == 0
    *_, warning, advice = capsys.readouterr().out.splitlines()
    assert warning == f"{output} {run.name} --logs_dir {logs} --exclude_nodes n1."
    assert advice == f"next: python -m launch requeue {run.name} --logs_dir {logs} --exclude_nodes n1"
    assert main(["why", "--logs_dir", str(logs), "r1"]) == 0
    assert "--exclude_nodes" not in capsys.readouterr().out, "it is finished"
