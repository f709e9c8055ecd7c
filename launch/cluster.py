"""Which cluster a command works on: Slurm where it answers, else this machine."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core.errors import UserError
from launch.execute import ROOT
from launch.resources import read_resources
from launch.script import HEADERS, Header, read_header
from launch.slurm import ask

CLUSTERS = ("auto", "slurm", "local", "debug")
USUAL = "job_scripts/train.slurm"  # what a run goes by that no script was named for
SLURM_HELP = "an option of sbatch that wins over the header: nodes=2, time=4:00:00, exclusive; may be repeated"
PATIENCE = 30.0  # seconds that Slurm may take to answer


def choose_cluster(wanted: str) -> str:
    """slurm, local or debug. Where there is a Slurm that does not answer, nobody wants a login node to train."""
    if wanted not in ("auto", "slurm"):
        return wanted
    if shutil.which("sbatch") is None:
        if wanted == "slurm":
            raise UserError(
                "--cluster is slurm: there is no sbatch on this machine; choose local, or go to a login node."
            )
        return "local"
    _, problem = ask("scontrol", "show", "config", patience=PATIENCE)
    if not problem:
        return "slurm"
    reason = problem.partition(": states are")[0]
    if wanted == "slurm" or re.search("contact|onnect|did not answer", reason):
        raise UserError(f"{reason}: try again later, or run on this machine with --cluster local.")
    # programs of Slurm without a configuration: there is no cluster
    sentence = f"Slurm is installed here but not set up ({inner(reason)}): what is submitted runs on this machine."
    print(sentence, file=sys.stderr)
    return "local"


def inner(reason: str) -> str:
    """Slurm's own words, without ours around them."""
    found = re.search(r"\((.*)\)$", reason)
    return found.group(1) if found else reason


def largest_array() -> int:
    """How many tasks an array may have; Slurm's own default where it does not say."""
    said, _ = ask("scontrol", "show", "config", patience=PATIENCE)
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", said, re.MULTILINE)
    return max(1, int(found.group(1)) if found else 1001)


def header_word(header: Header | None) -> str | None:
    """The name that --header and slurm_executor.sh know it by."""
    known = header is not None and Path(header.name).parent == HEADERS
    return Path(header.name).stem if header and known else None


def header_for(name: str | None, cluster: str, resources: Sequence[str] = ()) -> Header | None:
    """What to ask Slurm for: the header of that name, else what its script asks for; nothing without Slurm.

    resources: the words after --slurm.
    """
    own = read_resources(resources)
    if cluster != "slurm":
        for flag, value in (("header", name), ("slurm", " ".join(resources))):
            if value:
                raise UserError(
                    f"--{flag} is {value!r}: it has no effect with --cluster {cluster}; remove one of them."
                )
        return None
    return replace(read_header(ROOT, name) if name is not None else Header(USUAL, [], []), resources=own)
