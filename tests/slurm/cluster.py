"""A real Slurm of two nodes on this machine, for the tests and for people: `make slurm-up`, `make slurm-down`.

Everything lies in one folder: configuration, state, spools, logs, the munge key and its socket. It needs root and
Debian's `slurm-wlm` and `munge`. Partitions: `main`, whose jobs are requeued when a job in `urgent` needs their place,
with a grace time, and `cheap`, whose jobs are then cancelled at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "sinfo", "scancel")
NODES = ("n1", "n2")
FOLDER = Path("/tmp/ebt-slurm")  # of `make slurm-up`
HOSTS = Path("/etc/hosts")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmdPort={first_node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
Prolog={folder}/prolog
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MaxArraySize=2001
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=100000
InactiveLimit=0
KillWait=12
MinJobAge=600
SlurmctldTimeout=30
SlurmdTimeout=30
NodeName=DEFAULT CPUs=2 RealMemory=12000
NodeName=n[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=[{first_node_port}-{last_node_port}]
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
PartitionName=cheap Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=CANCEL GraceTime=0
PartitionName=urgent Nodes=n[1-2] MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs that are not here."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in NEEDED if shutil.which(name, path=path) is None]


def free_ports(count: int) -> int:
    """The first of so many neighbouring ports that nobody listens on."""
    for first in range(20_000 + secrets.randbelow(20_000), 60_000, count):
        taken = []
        for port in range(first, first + count):
            with socket.socket() as probe:
                taken.append(probe.connect_ex(("127.0.0.1", port)) == 0)
        if not any(taken):
            return first
    raise RuntimeError("no free ports")


class Cluster:
    """A cluster in `folder`; `environment` is what makes sbatch and its like speak with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.configuration = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.configuration)}
        self.names = f"127.0.0.1 {' '.join(NODES)}  # {folder}"

    def up(self) -> None:
        """Start all daemons and wait until both nodes are idle."""
        if lacking := missing():
            raise RuntimeError(f"no {', '.join(lacking)}: apt-get install slurm-wlm munge")
        for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        first = free_ports(1 + len(NODES))
        text = CONFIGURATION.format(
            folder=self.folder, controller_port=first, first_node_port=first + 1, last_node_port=first + len(NODES)
        )
        self.configuration.write_text(text)
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/bash\n[[ ! -e {self.broken('$SLURMD_NODENAME')} ]]\n")
        prolog.chmod(0o755)
        self.name_nodes()
        self.start_munge()
        self.run("slurmctld", "-c")
        for node in NODES:
            self.start_node(node)
        self.wait_until_idle()

    def start_node(self, node: str) -> None:
        self.run("slurmd", "-N", node, "-c")

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while self.states() != {"idle"}:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the nodes are {self.states()}: see {self.folder}/slurmctld.log")
            time.sleep(0.2)

    def broken(self, node: str) -> Path:
        """While there is such a file, the prolog of every job fails on the node."""
        return self.folder / f"broken-{node}"

    def drain(self, node: str, reason: str) -> None:
        self.run("scontrol", "update", f"nodename={node}", "state=drain", f"reason={reason}")

    def repair(self) -> None:
        """Let all nodes take jobs again."""
        for node in NODES:
            self.broken(node).unlink(missing_ok=True)
            with suppress(RuntimeError):  # it takes jobs already
                self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def stop_jobs(self) -> None:
        """Cancel all jobs and wait until their processes are gone."""
        self.run("scancel", "--full", "--user=root")
        self.wait_until_idle()

    def name_nodes(self) -> None:
        """Let n1 and n2 be this machine: the first process of a run is found by its node's name."""
        with HOSTS.open("a") as file:
            file.write(self.names + "\n")

    def forget_nodes(self) -> None:
        lines = HOSTS.read_text().splitlines()
        if self.names in lines:
            HOSTS.write_text("".join(line + "\n" for line in lines if line != self.names))

    def start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        paths = {"key-file": key, "socket": folder / "socket", "pid-file": folder / "pid"}
        paths |= {"log-file": folder / "log", "seed-file": folder / "seed"}
        words = [f"--{name}={path}" for name, path in paths.items()]
        self.run("munged", "--force", *words)

    def run(self, *words: str) -> str:
        """The output of a command that speaks with this cluster."""
        environment = {**os.environ, **self.environment}
        environment["PATH"] += ":/usr/sbin:/sbin"
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stdout}{done.stderr}")
        return done.stdout

    def states(self) -> set[str]:
        with suppress(RuntimeError):
            return set(self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split())
        return {"unreachable"}

    def down(self) -> None:
        """Stop everything and remove the folder."""
        with suppress(RuntimeError, FileNotFoundError, subprocess.TimeoutExpired):
            self.stop_jobs()
        names = ["slurmctld.pid", *(f"slurmd-{node}.pid" for node in NODES), "munge/pid"]
        for name in names:
            with suppress(OSError, ValueError):
                stop(int((self.folder / name).read_text()))
        self.forget_nodes()
        shutil.rmtree(self.folder, ignore_errors=True)


def stop(process: int, first: signal.Signals = signal.SIGTERM) -> None:
    os.kill(process, first)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{process}").exists():
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def main(words: list[str]) -> str | None:
    """What went wrong, for `make slurm-up` and `make slurm-down`; it needs no package, so no set-up."""
    cluster = Cluster(FOLDER)
    if words not in (["up"], ["down"]):
        return "python -m tests.slurm.cluster up|down"
    if words == ["up"] and (lacking := missing()):
        return f"no {', '.join(lacking)} here: as root, apt-get install slurm-wlm munge"
    if os.geteuid() != 0:
        return f"Slurm's daemons are started and stopped by root: sudo make slurm-{words[0]}"
    if words == ["down"]:
        cluster.down()
        return None
    if cluster.states() != {"unreachable"}:
        print("It is up already; ", end="")
    else:
        cluster.up()
        print("A Slurm of two nodes is up: ", end="")
    print(f"export SLURM_CONF={cluster.configuration}")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
