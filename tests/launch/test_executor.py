"""slurm_executor.sh: what is typed wrong is told at once, and what is submitted or run is on record before."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from core.errors import UserError
from launch.script import flags_passed_by, job_script, merge_options, read_header
from launch.submission import expected_start
from tests.conftest import ROOT, TrainCommand
from tests.launch.checkout import RECORD, SCRIPT, WORDS, Checkout

GOLDEN = Path(__file__).parent / "golden"
HEADERS = ("local_cpu", "reference_a100", "reference_apptainer", "reference_h100_multinode", "reference_pyxis")
ACCEPTS = 'echo "7"'  # a Slurm that takes everything
TESTED = "[[ $1 == --test-only ]] && exit"  # before anything else: it has nothing against the job


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "check out")


def nothing_made(checkout: Checkout) -> bool:
    return not checkout.logs.exists()


# -- the script ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [*HEADERS, "here"])
def test_golden(checkout: Checkout, header: str) -> None:
    """After a change that is meant: EBT_GOLDEN=write pytest tests/launch, and read the difference."""
    words = [*([] if header == "here" else [header]), SCRIPT, "--run_name", "it's mine", "--dataset_dir", "texts/*.txt"]
    made = checkout.execute(*words, "--dry_run", more={"VIRTUAL_ENV": "/venv"}).replace(
        str(checkout.root), "/check out"
    )
    golden = GOLDEN / f"{header}.slurm"
    if os.environ.get("EBT_GOLDEN") == "write":
        golden.write_text(made)
    assert made == golden.read_text()
    assert nothing_made(checkout), "a dry run makes nothing"
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", str(golden)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_a_header_wins_over_the_script_and_its_commands_are_kept(checkout: Checkout) -> None:
    path = checkout.root / "job_scripts" / "headers" / "mine.slurm"
    path.write_text("#SBATCH --time=2\nmodule load cuda\n#SBATCH --time=3\n")
    script = checkout.script("#!/bin/bash\n#SBATCH --time=1\nexec python train_model.py\n")
    made = checkout.execute("mine", script, "--dry_run")
    assert made.index("--time=2") < made.index("module load cuda")
    assert "--time=1" not in made, "a later line overrules it"
    assert "--time=3" not in made, "Slurm would not read a line below a command either"


@pytest.mark.parametrize(
    ("lines", "effective"),
    [
        (["--time=1", "--time=2"], ["--time=2"]),
        (["-t 1", "--mem=3", "--time 2"], ["--mem=3", "--time 2"]),
        (["-N 1 -n 2", "--nodes=3"], ["-N 1 -n 2", "--nodes=3"]),
        (["-N 1 -n 2", "--nodes=3", "-n4"], ["--nodes=3", "-n4"]),
        (["-N 4", "--comment='with -N 5'"], ["-N 4", "--comment='with -N 5'"]),
        (["-N4", "--exclusive"], ["-N4", "--exclusive"]),
    ],
)
def test_each_option_is_asked_for_once(lines: list[str], effective: list[str]) -> None:
    merged = merge_options([("# one", [f"#SBATCH {lines[0]}"]), ("# two", [f"#SBATCH {line}" for line in lines[1:]])])
    assert [line.removeprefix("#SBATCH ") for line in merged if line.startswith("#SBATCH")] == effective
    assert ("# one" in merged) == (lines[0] in effective)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a script in its snapshot, whose Python writes down what it is given."""
    folder = tmp_path_factory.mktemp("folder") / """it's a "folder" $(touch gone)"""
    scripts = folder / "code" / "job_scripts"
    scripts.mkdir(parents=True)
    for name in ("environment.sh", "under_slurm.sh"):
        shutil.copy(ROOT / "job_scripts" / name, scripts / name)
    (scripts / "a $(touch gone) 'b'.sh").write_text('exec python train_model.py "$@"\n')
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text('#!/bin/bash\nprintf "%s\\0" "$@" > "$EBT_JOB_RUN_DIR/received"\n')
    (folder / "bin" / "python").chmod(0o755)
    return folder


@settings(max_examples=60, deadline=None)
@given(words=WORDS)
@example(words=["x" * 300, "é 漢字 \u202e", "a\n#SBATCH --partition=urgent\n", "-n", "--", ""])
def test_words_reach_the_run_as_they_were_typed(folder: Path, words: list[str]) -> None:
    script = "job_scripts/a $(touch gone) 'b'.sh"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "EBT_STEP_OF": "none"}  # it is known to be no job
    assert flags_passed_by(folder / "code" / script, words, environment, in_a_job=True) == words
    entering = [f'export VIRTUAL_ENV=x PATH={shlex.quote(str(folder / "bin"))}:"$PATH"']
    made = folder / "job_script.slurm"
    text = job_script(read_header(ROOT, "local_cpu"), script, "text\n", words, folder, entering)
    made.write_bytes(text.encode())
    done = subprocess.run(["bash", str(made)], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and not done.stdout
    received = (folder / "received").read_bytes().decode().split("\0")[:-1]
    assert received == ["train_model.py", *words]
    assert not list(folder.parent.rglob("gone")), "nothing of it was executed"


# -- what a person can get wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "bash slurm_executor.sh [HEADER] JOB_SCRIPT"),
        (
            ["nowhere", SCRIPT],
            "HEADER is 'nowhere': choose local_cpu, reference_a100, reference_apptainer, reference_h100_multinode, ref",
        ),
        (["local_cpu"], "JOB_SCRIPT is missing after job_scripts/headers/local_cpu.slurm: choose job_scripts/"),
        (["local_cpu", "job_scripts/no.sh"], "JOB_SCRIPT is 'job_scripts/no.sh': there is no such file; choose job_"),
        (["local_cpu", "/etc/profile"], "JOB_SCRIPT is '/etc/profile': put it into job_scripts/, so that it is kept"),
        (["local_cpu", SCRIPT, "--max_stepz", "5"], "--max_stepz is unknown: did you mean --max_steps?"),
        (["local_cpu", SCRIPT, "--config", "no.yaml"], "--config is 'no.yaml': there is no such file"),
        (["local_cpu", SCRIPT, "--logs_dir", "a\\b"], "Slurm cannot write a log there; choose a path without \\ and"),
        (
            ["local_cpu", "job_scripts/nlp/inference/evaluate.sh"],
            "evaluate.sh calls python -m inference: a script ends",
        ),
    ],
)
def test_mistakes(checkout: Checkout, words: list[str], sentence: str) -> None:
    checkout.program("sbatch", ACCEPTS)
    output = checkout.execute(*words, status=2)
    assert sentence in output and "Traceback" not in output
    assert nothing_made(checkout)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("if true; then\n", "JOB_SCRIPT job_scripts/mine.sh is no valid bash: line 2: syntax error"),
        ("echo done\n", "mine.sh ended with status 0 and did not call train_model.py: a script ends in `exec"),
        ("nosuchcommand\n", "mine.sh ended with status 127 ("),
        ("python train_model.py\n", "mine.sh calls train_model.py without exec: Slurm's signals would end its shell"),
        ("exec srun python train_model.py\n", "mine.sh calls srun python train_model.py: a script ends in"),
        ("#SBATCH --array=0-3\nexec python train_model.py\n", "#SBATCH --array: an array is several runs"),
        ("#SBATCH -a 0-3\nexec python train_model.py\n", "#SBATCH --array: an array is several runs"),
    ],
)
def test_scripts_that_cannot_be_submitted(checkout: Checkout, text: str, sentence: str) -> None:
    checkout.program("sbatch", ACCEPTS)
    assert sentence in checkout.execute("local_cpu", checkout.script(text), status=2)
    assert nothing_made(checkout)


def test_texts_that_are_none(checkout: Checkout) -> None:
    (checkout.root / "job_scripts" / "headers" / "mine.slurm").write_bytes(b"\xff")
    (checkout.root / "job_scripts" / "mine.sh").write_bytes(b"\xff")
    assert "HEADER is mine.slurm: it is not a UTF-8 text; save it as one." in checkout.execute("mine", SCRIPT, status=2)
    assert "JOB_SCRIPT is mine.sh: it is not a UTF-8 text; save it as one." in checkout.execute(
        "job_scripts/mine.sh", status=2
    )


def test_a_script_that_never_comes_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "slow.sh").write_text("sleep 60\n")
    with pytest.raises(UserError, match=r"slow.sh did not come to train_model.py within 0.3 s"):
        flags_passed_by(tmp_path / "slow.sh", [], dict(os.environ), in_a_job=True, timeout=0.3)


def test_bytes_that_are_no_text(checkout: Checkout) -> None:
    command = [b"bash", os.fsencode(checkout.root / "slurm_executor.sh"), SCRIPT.encode(), b"--run_name", b"\xff"]
    done = subprocess.run(command, env=checkout.environment(), capture_output=True, text=True)
    assert done.returncode == 2 and "'\\udcff' is not UTF-8: a script cannot hold it" in done.stderr
    assert nothing_made(checkout)


def test_a_run_that_goes_on_has_its_script_already(checkout: Checkout) -> None:
    checkout.execute(SCRIPT)
    (checkout.run / "attempts.jsonl").write_text("")
    (checkout.run / "checkpoints" / "step_00000001.ckpt").touch()
    output = checkout.execute(SCRIPT, "--resume_training_ckpt", "last", status=2)
    own = shlex.quote(str(checkout.run / "job_script.slurm"))
    assert f"--resume_training_ckpt resumes run {checkout.run.name}, which has its own script: bash {own}." in output


# -- Slurm that is not there, or says no -----------------------------------------------------------------------------


def test_no_slurm(checkout: Checkout) -> None:
    lacking = checkout.root.parent / "bin"
    lacking.mkdir()
    for name in ("bash", "dirname", "git"):
        (lacking / name).symlink_to(shutil.which(name) or name)
    path = f"{checkout.environment()['PATH'].split(':')[1]}:{lacking}"
    output = checkout.execute("local_cpu", SCRIPT, status=2, more={"PATH": path})
    assert "There is no sbatch on this machine: leave HEADER out to run here and now, or go to a login node." in output
    assert nothing_made(checkout)


@pytest.mark.parametrize(
    ("slurm_says", "sentence"),
    [
        (
            "sbatch: error: Batch job submission failed: Invalid partition name specified",
            "sbatch refused the job (Invalid partition name specified): correct the header, --slurm, or SBATCH_",
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
            "sbatch cannot reach Slurm (Unable to contact slurm controller (connect failure)): its controller is down",
        ),
    ],
)
def test_a_job_that_slurm_refuses_leaves_nothing(checkout: Checkout, slurm_says: str, sentence: str) -> None:
    """Neither what it refuses when it is asked, nor what it refuses after it had nothing against it."""
    for first in ("true", TESTED):
        checkout.program("sbatch", f"{first}; echo {shlex.quote(slurm_says)} >&2; exit 1")
        output = checkout.execute("local_cpu", SCRIPT, status=2)
        assert sentence in output and "run id" not in output.splitlines()[-1]
        if first == "true":
            assert nothing_made(checkout)
        elif "refused" in sentence:
            assert not any(any((checkout.logs / name).iterdir()) for name in ("runs", "job_scripts"))
        else:  # whether Slurm has it is not known
            assert f"The run's record stays in {checkout.run}." in output
            assert {file.name for file in checkout.run.iterdir()} >= RECORD
            assert checkout.submission()["state"] == "failed" and sentence[:30] in checkout.submission()["error"]


@pytest.mark.parametrize(
    ("estimate", "line"),
    [
        ("Job 3 to start at 2038-01-19T03:14 using 2 processors on nodes n[1-2] in partition main", ""),
        ("Job 3 to start at 2020-01-01T00:00:00 using 1 processors on nodes n1 in partition main", "now, on n1"),
        ("Job 3 to start at {soon} using 1 processors on nodes n1 in partition main", "about {clock}, on n1"),
        ("Job 3 to start at 4068-05-30T10:30:38 using 1 processors on nodes n2 in partition main", ""),
        ("Job 3 to start at N/A using 1 processors on nodes n2 in partition main", ""),
        ("something else", ""),
    ],
)
def test_the_start_that_slurm_expects(estimate: str, line: str) -> None:
    soon = datetime.now() + timedelta(days=2)
    output = expected_start("sbatch: a remark\nsbatch: " + estimate.format(soon=soon.isoformat()))
    assert output == line.format(clock=soon.strftime("%Y-%m-%d %H:%M"))


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        (
            "PartitionConfig",
            "Slurm would never start the job (PartitionConfig): it asks for more nodes, time or memory",
        ),
        ("ReqNodeNotAvail", None),
        ("", None),
    ],
)
def test_sbatch_itself_has_the_last_word(checkout: Checkout, reason: str, sentence: str | None) -> None:
    """`--test-only` says no while nodes are down, too, and where it does not work at all."""
    folder = shlex.quote(str(checkout.programs))
    checkout.program("sbatch", f'echo "$@" >> {folder}/sbatch_calls; [[ $1 != --test-only ]] || exit 1; {ACCEPTS}')
    checkout.program("scontrol", f"[[ $1 != show ]] || echo 'JobId=7 Reason={reason} x'")
    checkout.program("scancel", f'echo "$@" >> {folder}/cancelled')
    output = checkout.execute("local_cpu", SCRIPT, status=2 if sentence else 0)
    sbatch_calls = (checkout.programs / "sbatch_calls").read_text().splitlines()
    assert sbatch_calls[1] == "--parsable --begin=now+10minutes --mail-type=NONE"
    assert (checkout.programs / "cancelled").read_text() == "7\n", "what was tried is taken back"
    if sentence:
        assert sentence in output and nothing_made(checkout) and len(sbatch_calls) == 2
    else:
        assert "job id  7" in output and sbatch_calls[2].startswith("--hold")


@pytest.mark.parametrize(
    ("complaint", "advice"),
    [
        ("Access denied", "takes it back."),
        ("Unable to contact slurm controller", "scontrol release 7 releases it."),
    ],
)
def test_a_job_that_cannot_be_released(checkout: Checkout, complaint: str, advice: str) -> None:
    checkout.program("sbatch", ACCEPTS)
    checkout.program("scontrol", f"echo 'scontrol: error: {complaint}' >&2; exit 1")
    output = checkout.execute("local_cpu", SCRIPT, status=2)
    assert "Job 7 is held: " in output and output.endswith(f"{advice}\n")
    assert checkout.submission()["state"] == "held" and complaint in checkout.submission()["error"]


def test_a_job_whose_number_cannot_be_recorded_is_taken_back(checkout: Checkout) -> None:
    checkout.program("sbatch", f'{TESTED}; mkdir "${{3%/*}}/job.json"; {ACCEPTS}')
    for name in ("scancel", "scontrol"):
        checkout.program(name, f'echo "$@" > {shlex.quote(str(checkout.programs))}/{name}.calls')
    output = checkout.execute("local_cpu", SCRIPT, status=2)
    assert (
        f"{checkout.run} cannot be written to (Is a directory): job 7 was cancelled before it began, as its" in output
    )
    assert (checkout.programs / "scancel.calls").read_text() == "7\n"
    assert not (checkout.programs / "scontrol.calls").exists(), "it never could begin"


def test_stopped_by_hand_while_submitting(checkout: Checkout) -> None:
    checkout.program("sbatch", f"{TESTED}; kill -INT $PPID; sleep 1; {ACCEPTS}")
    assert checkout.execute("local_cpu", SCRIPT, status=130).endswith("stopped by hand\n")
    assert checkout.submission()["state"] == "unknown"
    assert f"squeue --name={checkout.run.name} shows whether there is a job" in checkout.submission()["error"]


@pytest.mark.parametrize("where", ["sbatch", "scontrol"])
def test_killed_at_any_point_there_is_a_record(checkout: Checkout, where: str) -> None:
    """The record is whole when Slurm is first told of the job, and has its number before the job may start."""
    checkout.program("sbatch", ACCEPTS)
    checkout.program(where, f"{TESTED}; kill -9 $PPID")
    checkout.execute("local_cpu", SCRIPT, status=-9)
    assert {file.name for file in checkout.run.iterdir()} >= RECORD
    assert len(list((checkout.logs / "job_scripts").iterdir())) == 1
    assert (checkout.run / "job.json").exists() == (where == "scontrol")
    assert checkout.submission()["state"] == {"sbatch": "submitting", "scontrol": "held"}[where]


def test_logs_that_cannot_be_written(checkout: Checkout) -> None:
    checkout.logs.write_text("a file\n")
    output = checkout.execute(SCRIPT, status=2)
    assert f"--logs_dir is '{checkout.logs}': cannot write there" in output
    assert checkout.logs.read_text() == "a file\n"


def test_a_full_disk(checkout: Checkout) -> None:
    """A real one: a file system of 400 kB, in a namespace of the test's own."""
    checkout.logs.mkdir()
    words = f"mount -t tmpfs -o size=400k none {shlex.quote(str(checkout.logs))} && "
    words += (
        f"{{ bash {shlex.quote(str(checkout.root / 'slurm_executor.sh'))} {SCRIPT}; echo status $?; ls -A logs/runs; }}"
    )
    (checkout.root / "large.txt").write_bytes(os.urandom(1_000_000))
    command = ["unshare", "--mount", "bash", "-c", words]
    done = subprocess.run(command, cwd=checkout.root, env=checkout.environment(), capture_output=True, text=True)
    if "status" not in done.stdout:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr}")
    assert "cannot write there (No space left on device): choose a folder you can write to, or free some" in done.stderr
    assert done.stdout == "status 2\n", "nothing half-made is left"


# -- what is done ----------------------------------------------------------------------------------------------------


def test_submitted_held_noted_released(checkout: Checkout) -> None:
    warning = "echo sbatch: the budget is low >&2"
    checkout.program(
        "sbatch", f'{warning}; printf "%s\\n" "$@" > {shlex.quote(str(checkout.programs))}/sbatch_calls; {ACCEPTS}'
    )
    checkout.program("scontrol", f'echo "$@" > {shlex.quote(str(checkout.programs))}/scontrol_calls')
    output = checkout.execute("local_cpu", SCRIPT, "--run_name", "it's é $(touch gone)")
    run, log = checkout.run, checkout.run / "slurm-7.log"
    assert "sbatch: the budget is low" in output, "what the cluster has to say is passed on"
    printed = f"run id  {run.name}\njob id  7\nscript  {run}/job_script.slurm\nlog     {log}\n"
    assert f"{printed}follow  python -m launch logs {run.name} -f\n" in output
    sbatch_calls = (checkout.programs / "sbatch_calls").read_text()
    assert sbatch_calls == f"--hold\n--parsable\n{run}/job_script.slurm\n"
    assert (checkout.programs / "scontrol_calls").read_text() == "release 7\n"
    assert checkout.submission()["state"] == "released" and checkout.submission()["job"] == "7"
    (copy,) = (checkout.logs / "job_scripts").iterdir()
    assert copy.read_text() == (run / "job_script.slurm").read_text() and copy.name.endswith(f"_{run.name}.slurm")
    typed = shlex.split((run / "command.txt").read_text())
    assert typed == ["bash", "slurm_executor.sh", "local_cpu", SCRIPT, "--run_name", "it's é $(touch gone)"]
    assert not list(checkout.root.rglob("gone"))


def test_nothing_of_an_enclosing_job_is_passed_on(checkout: Checkout) -> None:
    checkout.program("sbatch", f"env > {shlex.quote(str(checkout.programs))}/env; {ACCEPTS}")
    checkout.program("scontrol", "true")
    inside = {"SLURM_JOB_ID": "3", "SLURM_PROCID": "1", "SLURM_CPU_BIND": "x", "SLURM_MEM_PER_NODE": "1", "RANK": "1"}
    inside["EBT_JOB_RUN_DIR"] = "/other"
    settings = {"SLURM_CONF": "/conf", "SBATCH_PARTITION": "main", "SBATCH_OUTPUT": "/elsewhere", "EBT_CACHE": "/cache"}
    checkout.execute("local_cpu", SCRIPT, more=inside | settings)
    passed = set((checkout.programs / "env").read_text().split("\n"))
    assert {"SLURM_CONF=/conf", "SBATCH_PARTITION=main", "EBT_CACHE=/cache"} <= passed
    names = {line.partition("=")[0] for line in passed}
    assert not names & {*inside, "SBATCH_OUTPUT"}


def test_here_and_now_from_the_snapshot(checkout: Checkout) -> None:
    (checkout.root / "mine.yaml").write_text("max_steps: 3\n")
    words = ["--config", "mine.yaml", "--dataset_dir", "my texts", "--run_name", "é"]
    checkout.execute(SCRIPT, *words, status=5, more={"EXIT_WITH": "5", "SLURM_JOB_ID": "3"})
    received, run = checkout.received(), checkout.run
    assert received["cwd"] == str(run / "code") and received["code"].startswith(str(run / "code"))
    assert received["env"]["EBT_JOB_RUN_DIR"] == str(run) and "SLURM_JOB_ID" not in received["env"]
    argv = received["argv"]
    assert argv[-6:] == [
        *("--config", str(run / "settings.yaml"), "--dataset_dir", str(checkout.root / "my texts")),
        *("--logs_dir", str(checkout.logs)),
    ]
    assert argv[:-6][-6:] == words
    assert (run / "settings.yaml").read_text() == "max_steps: 3\n"
    assert checkout.submission()["state"] == "here" and not (run / "job.json").exists()


def test_train_slurm_is_a_script_like_the_others(checkout: Checkout) -> None:
    script = "job_scripts/train.slurm"
    checkout.execute(script, "--run_name", "é")
    assert checkout.received()["argv"][:2] == ["--run_name", "é"]
    made = checkout.execute("local_cpu", script, "--run_name", "é", "--dry_run")
    assert "--time=24:00:00" not in made and "--time=02:00:00" in made, "the header wins"
    # As a process of the job that somebody submitted again, from elsewhere.
    (checkout.run / "received.json").unlink()
    inside = {"SLURM_JOB_ID": "5", "EBT_STEP_OF": "5", "SLURM_SUBMIT_DIR": "/", "EBT_JOB_RUN_DIR": str(checkout.run)}
    command = ["bash", str(checkout.run / "code" / script), "--run_name", "again"]
    subprocess.run(command, cwd="/", env=checkout.environment(inside), check=True)
    assert checkout.received()["argv"] == ["--run_name", "again"]
    assert checkout.received()["code"].startswith(str(checkout.run / "code"))


def test_the_environment_is_entered_again(checkout: Checkout) -> None:
    made = checkout.execute("local_cpu", SCRIPT, "--dry_run", more={"VIRTUAL_ENV": "/a venv", "CONDA_PREFIX": "/conda"})
    conda, venv = made.index('export CONDA_PREFIX=/conda PATH=/conda/bin:"$PATH"'), made.index("export VIRTUAL_ENV=")
    assert conda < venv, "a venv made with conda's Python comes first in PATH"
    assert "export VIRTUAL_ENV='/a venv' PATH='/a venv'/bin:\"$PATH\"" in made


def test_no_secret_is_written(checkout: Checkout) -> None:
    secrets = {"WANDB_API_KEY": "hidden-1", "HF_TOKEN": "hidden-2", "MY_PASSWORD": "hidden-3"}
    (checkout.root / ".env").write_text("KEY=hidden-4\n")
    checkout.program("sbatch", ACCEPTS)
    checkout.program("scontrol", "true")
    output = checkout.execute("local_cpu", SCRIPT, more=secrets)
    assert "not kept with the run: .env, which git does not track" in output
    for file in checkout.logs.rglob("*"):
        assert not file.is_file() or b"hidden-" not in file.read_bytes(), file


def test_a_real_run_here_and_now(train_command: TrainCommand) -> None:
    flags = train_command.command("--run_name", "here")[2:]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    command = ["bash", "slurm_executor.sh", "job_scripts/nlp/pretrain/baseline_transformer.sh", *flags]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"cause": "finished"' in (train_command.run_folder / "attempts.jsonl").read_text()
    assert not list((train_command.run_folder / "code").rglob("__pycache__")), "the snapshot stays as it is"


@pytest.mark.parametrize("name", ["evaluate", "think_curve"])
def test_inference_scripts_with_plain_bash(name: str) -> None:
    script = ROOT / "job_scripts" / "nlp" / "inference" / f"{name}.sh"
    done = subprocess.run(["bash", str(script), "--help"], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0 and name.replace("_", "-") in done.stdout, done.stderr
