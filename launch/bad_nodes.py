"""Bad nodes: a node on which the latest attempts failed while none failed elsewhere, by attempts.jsonl of the runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from core.text import format_value
from runs.run import Run, seconds_of

DAYS = 7  # older attempts do not count
RUNS = 200  # the newest, whose attempts are read
FAILURES = 2  # in a row on one node, none elsewhere
FAULTS = ("node failure", "killed", "crashed", "hung")  # ends that a node often causes
ERRORS = ("error", "out of memory")  # ends that a run causes itself, unless runs end well elsewhere


@dataclass(frozen=True)
class BadNode:
    """A node whose last attempts failed. runs: their ids."""

    name: str
    runs: tuple[str, ...]

    def sentence(self, run: str = "RUN") -> str:
        """The node and its failed runs in words. run: the argument of `requeue`."""
        names = list(dict.fromkeys(map(format_value, self.runs)))
        whose = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return (
            f"{format_value(self.name)} ended {len(self.runs)} attempts in {DAYS} days ({whose}), no other node did "
            f"any: python -m launch requeue {run} --exclude_nodes {format_value(self.name)}"
        )


def node_that_ended(attempt: dict[str, Any]) -> str:
    """The node of the process that ended the attempt: the recorded one, or the only one; else empty."""
    node, nodes = attempt.get("ended_on"), attempt.get("nodes")
    if isinstance(node, str) and node:
        return node
    return nodes if isinstance(nodes, str) and not re.search(r"[,\[]", nodes) else ""


def bad_node(runs: Iterable[Run]) -> BadNode | None:
    """A node on which the last attempts failed while none failed elsewhere. runs: newest first."""
    since = time.time() - DAYS * 86400
    ends = []
    for run in islice(runs, RUNS):
        for attempt in run.attempts:
            when, node = seconds_of(attempt.get("end")), node_that_ended(attempt)
            if when > since and node:
                cluster = str(attempt.get("cluster") or run.job.get("cluster", ""))
                ends.append((when, cluster, node, str(attempt.get("cause", "")), run.run_id))
    ends.sort()
    ends = [end for end in ends if end[1] == ends[-1][1]]  # the nodes of two clusters may have the same names
    for causes in (FAULTS, FAULTS + ERRORS):
        failed = [(node, run) for _, _, node, cause, run in ends if cause.startswith(causes)]
        if len({node for node, _ in failed}) != 1:
            continue
        bad = failed[0][0]
        latest = [cause for _, _, node, cause, _ in ends if node == bad][-FAILURES:]
        has_other_nodes = any(node != bad for _, _, node, _, _ in ends)
        if sum(cause.startswith(causes) for cause in latest) == FAILURES and (causes is FAULTS or has_other_nodes):
            return BadNode(bad, tuple(run for _, run in failed))
    return None
