"""What short runs of language give, to the bit: `python -m tests.golden.record` records it, `--check` compares.

Only commands are used that a person would type, so that this program works with every version of the code. Numbers of
a CPU differ between machines and libraries, so this is no part of `make test`: where the check fails with code that is
known to be right, record again with that code, `--code CHECKOUT`, and then check. Texts (help, job scripts) may change
on purpose: `--texts` shows how they differ, and no check fails for it. Numbers were recorded with commit 18d3aad.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
OLD_RUNS = {folder.name.partition("_")[0]: folder for folder in sorted((FOLDER / "old_runs").iterdir())}
TINY = (
    *("--no_wandb", "--deterministic", "--context_length", "32", "--batch_size_per_device", "4"),
    *("--embedding_dim", "32", "--num_transformer_blocks", "2", "--multiheaded_attention_heads", "2"),
    *("--max_steps", "12", "--warm_up_steps", "2", "--log_every_n_steps", "1"),
    *("--limit_val_batches", "2", "--val_check_interval", "6", "--dataset_name", "text"),
)
# s1 and s2 have time_embed of their own, the others default.
CASES: dict[str, tuple[str, ...]] = {
    "baseline_transformer": ("--model_name", "baseline_transformer", "--run_testing_after_training"),
    "residual": ("--log_gradients",),
    "residual_time_embed": ("--ebt_type", "time_embed", "--mcmc_num_steps", "2"),
    "residual_adaln_zero": ("--ebt_type", "adaln_zero", "--mcmc_num_steps", "2"),
    "laptop": ("--recipe", "laptop"),
    "laptop_time_embed": ("--recipe", "laptop", "--ebt_type", "time_embed"),
    "laptop_adaln_zero": ("--recipe", "laptop", "--ebt_type", "adaln_zero"),
    "s1": ("--recipe", "s1"),
    "s1_default": ("--recipe", "s1", "--ebt_type", "default", "--mcmc_step_size", "auto"),
    "s1_adaln_zero": ("--recipe", "s1", "--ebt_type", "adaln_zero", "--mcmc_step_size", "auto"),
    "s2": ("--recipe", "s2"),
    "s2_default": ("--recipe", "s2", "--ebt_type", "default"),
    "s2_adaln_zero": ("--recipe", "s2", "--ebt_type", "adaln_zero", "--mcmc_step_size", "auto"),
    "public_contrastive": (
        "--recipe",
        "public",
        "--mcmc_step_size",
        "100",
        "--contrastive_loss",
        "--ebt_norm",
        "layer",
    ),
    "residual_bpe": ("--tokenizer", "bpe:300", "--accumulate_grad_batches", "2", "--no-isolate_documents"),
    "residual_adaln": ("--ebt_type", "adaln", "--no_shuffle", "--optimizer", "sgd", "--lr_schedule", "linear"),
}
KILLED = ("--recipe", "s2", "--max_steps", "32", "--checkpoint_every_n_steps", "4")
# How a trained model is used beyond its defaults; by the case whose model it is.
THOUGHTS: dict[str, tuple[str, ...]] = {
    "residual_time_embed": ("--infer_ebt_num_steps", "3", "--infer_accept_lower_energies", "--infer_temp", "0"),
    "laptop": ("--infer_generated_samples", "3", "--infer_ebt_num_steps", "3", "--infer_topk", "20"),
    "s2": ("--infer_generated_samples", "2", "--infer_langevin_dynamics_noise", "1", "--infer_ebt_stop_change", "0.01"),
    "s1_adaln_zero": ("--infer_ebt_num_steps", "2", "--infer_steps_final_landscape", "--infer_topp", "0.9"),
}
# One model has no walk; of layers without an analytic gradient the FLOPs of a walk cannot be counted.
WITHOUT_CURVE = ("baseline_transformer", "public_contrastive")
CLOCK = ("time", "seconds", "tokens_per_second", "loader_wait_share", "attempt")
HEADERS = ("local_cpu", "reference_a100", "reference_h100_multinode", "reference_pyxis", "reference_apptainer")


class Recorder:
    """The commands of the code in `code`, with caches, logs and texts in `work`."""

    def __init__(self, code: Path, work: Path) -> None:
        self.code, self.work, self.logs = code, work, work / "logs"
        self.corpus, self.shifted = work / "corpus", work / "shifted.txt"
        self.corpus.mkdir()
        for number in range(60):
            (self.corpus / f"{number:02}.txt").write_text(sentences(number, 40))
        self.shifted.write_text(sentences(1000, 200).upper())
        programs = work / "programs"  # a Slurm that answers nothing: dry runs ask whether there is one
        programs.mkdir()
        for name in ("sbatch", "squeue", "scontrol", "sacct", "sinfo", "scancel", "srun"):
            (programs / name).write_text("#!/bin/sh\n")
            (programs / name).chmod(0o755)
        foreign = ("SLURM", "SBATCH", "EBT_", "WANDB")
        for name in [name for name in os.environ if name.startswith(foreign)]:
            del os.environ[name]
        os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
        os.environ |= {"EBT_CACHE": str(work / "cache"), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        from tests.support import warm  # the server keeps these variables

        self.warm = warm

    def record(self, name: str) -> dict[str, str]:
        """Texts by the names of their files."""
        if name == "old_runs":
            return {f"old_{run}.json": formatted(self.old_run(run)) for run in OLD_RUNS}
        if name != "texts":
            return {f"{name}.json": formatted(self.killed() if name == "killed" else self.case(name))}
        return {f"texts/{file}.txt": text for file, text in self.texts().items()}

    def python(self, *words: str, status: int = 0) -> str:
        done = self.warm.run([sys.executable, *words], cwd=self.code, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"{' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def command(self, name: str, *flags: str) -> list[str]:
        places = ("--dataset_dir", str(self.corpus), "--logs_dir", str(self.logs), "--run_name", name.replace("_", "-"))
        return ["train_model.py", *TINY, *places, *flags]

    def run_folder(self, name: str) -> Path:
        (folder,) = (self.logs / "runs").glob(name.replace("_", "-") + "_2*")
        return folder

    def case(self, name: str) -> dict[str, Any]:
        """Train, then evaluate, generate and think."""
        self.python(*self.command(name, *CASES[name]))
        golden = self.trained(name)
        folder, of_run = self.run_folder(name), ("--run", name.replace("_", "-"), "--logs_dir", str(self.logs))
        thoughts = THOUGHTS.get(name, ())
        self.python("-m", "inference", "evaluate", *of_run, "--limit", "8")
        golden["evaluate"] = [without(row, "seconds", "time") for row in rows_of(folder / "evaluation.jsonl")]
        prompt = ("--prompt", "The river ", "--infer_max_gen_len", "40", "--out", "-")
        generated = json.loads(self.python("-m", "inference", "generate", *of_run, *prompt, *thoughts))
        golden["generate"] = [generated["text"], *(list(token.values()) for token in generated["tokens"])]
        if name not in WITHOUT_CURVE:
            study = ("--steps", "3", "--candidates", "2", "--seeds", "2", "--tokens", "128")
            self.python("-m", "inference", "think-curve", *of_run, *study, "--shifted", str(self.shifted))
            with (folder / "think_curve.csv").open() as file:
                golden["think_curve"] = list(csv.reader(file))
        return golden

    def killed(self) -> dict[str, Any]:
        """A run that is killed after some checkpoint, resumed, stopped by SIGTERM, and resumed again."""
        first = self.command("killed", *KILLED)
        for number, sent in ((1, signal.SIGKILL), (3, signal.SIGTERM)):
            resume = ("--resume_training_ckpt", "last") if number > 1 else ()
            words = [sys.executable, *first, *resume]
            with self.warm.start(words, cwd=self.code, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                while process.poll() is None:
                    if len(list(self.logs.glob("runs/killed_2*/checkpoints/step_*.ckpt"))) >= number:
                        process.send_signal(sent)
                        break
                    time.sleep(0.001)
                process.wait()
        self.python(*first, "--resume_training_ckpt", "last")
        attempts = {row["attempt"] for row in rows_of(self.run_folder("killed") / "metrics.jsonl")}
        assert len(attempts) > 1, "the run ended before it could be killed"
        return self.trained("killed")

    def old_run(self, name: str) -> dict[str, Any]:
        """A run folder that commit 18d3aad left, four steps later."""
        folder = self.logs / "runs" / OLD_RUNS[name].name
        shutil.copytree(OLD_RUNS[name], folder, symlinks=True)
        self.python(*resume_command(self.logs, name))
        return self.trained(name)

    def trained(self, name: str) -> dict[str, Any]:
        """Metrics and the last checkpoint of a run."""
        import torch

        folder = self.run_folder(name)
        checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True, map_location="cpu")
        digests: dict[str, Any] = {}
        for key, value in leaves(checkpoint):
            if isinstance(value, torch.Tensor):  # one line for all that an optimizer knows of a parameter
                name_of = key.rpartition("/")[0] if key.startswith("/optimizer_states") else key
                digests.setdefault(name_of, hashlib.sha256()).update(value.contiguous().numpy().tobytes())
        tensors = {key: digest.hexdigest()[:16] for key, digest in digests.items()}
        rows = [without(row, *CLOCK) for row in rows_of(folder / "metrics.jsonl")]
        keys = {"": sorted(checkpoint)} | {
            name: sorted(checkpoint[name]) for name in ("callbacks", "DataModule") if name in checkpoint
        }
        return {"metrics": rows, "tensors": tensors, "checkpoint_keys": keys}

    def texts(self) -> dict[str, str]:
        """What the commands print, with the places of this machine taken out. Two runs are there to be listed."""
        self.logs = self.work / "texts" / "logs"
        for name in ("baseline_transformer", "residual"):
            self.python(*self.command(name, *CASES[name]))
        commands: dict[str, tuple[str, ...]] = {
            "train.help": ("train_model.py", "--help"),
            "train.print_config": ("train_model.py", "--print_config"),
            "train.print_config_s2": ("train_model.py", "--recipe", "s2", "--model_size", "xs", "--print_config"),
        }
        for program in ("inference", "runs", "launch"):
            commands[f"{program}.help"] = ("-m", program, "--help")
        for name in ("generate", "evaluate", "think-curve", "landscape"):
            commands[f"inference.{name}.help"] = ("-m", "inference", name, "--help")
        texts = {name: self.python(*words) for name, words in commands.items()}
        script, logs = "job_scripts/nlp/pretrain/ebt_s1.sh", ("--logs_dir", str(self.logs))
        for header in HEADERS:
            words = ["bash", str(self.code / "slurm_executor.sh"), header, script, *logs, "--dry_run"]
            done = subprocess.run(words, cwd=self.code, capture_output=True, text=True, timeout=60)
            texts[f"executor.{header}"] = done.stdout + done.stderr
        submit = ("-m", "launch", "submit", script, "--header", "reference_a100", "--cluster", "slurm", "--dry_run")
        texts["submit"] = self.python(*submit, *logs, "--slurm", "time=1:00:00")
        sweep = self.work / "sweep.yaml"
        sweep.write_text(
            f"base:\n  recipe: s1\n  dataset_dir: {self.corpus}\ngrid:\n  seed: [0, 1]\n  model_size: [4xs, xs]\n"
        )
        texts["sweep"] = self.python("-m", "launch", "sweep", str(sweep), *logs, "--cluster", "slurm", "--dry_run")
        listed = json.loads(self.python("-m", "runs", "list", "--json", *logs))
        texts["runs.list.keys"] = "\n".join(sorted({key for row in listed for key, _ in leaves(row)})) + "\n"
        texts["runs.show"] = self.python("-m", "runs", "show", "residual", *logs)
        return {name: self.portable(text) for name, text in texts.items()}

    def portable(self, text: str) -> str:
        environments = {Path(sys.prefix): "ENVIRONMENT", self.code / ".venv": "ENVIRONMENT"}
        for place, word in (environments | {self.logs.parent: "WORK", self.work: "WORK", self.code: "CODE"}).items():
            text = text.replace(str(place), word)
        text = re.sub(r".*(tokens/s|Memory|loader|attempt on|tokens_per_second).*\n", "", text)
        text = re.sub(r"\d{8}-\d{6}_[0-9a-f]{6}", "DATE", text)
        text = re.sub(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d{4})?", "DATE", text)
        return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def resume_command(logs: Path, name: str) -> list[str]:
    """Four more steps of an old run."""
    steps = int((OLD_RUNS[name] / "checkpoints" / "last.ckpt").resolve().stem.removeprefix("step_")) + 4
    where = ("--no_wandb", "--logs_dir", str(logs), "--run_name", name)
    return ["train_model.py", *where, "--resume_training_ckpt", "last", "--max_steps", str(steps)]


def sentences(seed: int, number: int) -> str:
    draw = random.Random(seed)
    nouns = ["river", "stone", "bird", "city", "paper", "engine", "window", "garden", "cloud", "letter", "bridge"]
    verbs = ["carries", "finds", "leaves", "follows", "opens", "paints", "turns", "remembers", "builds", "crosses"]
    return "".join(
        f"The {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)} of {draw.randrange(100)}. "
        for _ in range(number)
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    """The row without these keys and without places on this machine, in rows inside it too."""
    names = (*keys, "run_id", "checkpoint", "dataset_dir", "run", "logs_dir")
    return {
        key: without(value, *keys) if isinstance(value, dict) else value
        for key, value in row.items()
        if key not in names
    }


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{path}/{number}")
    else:
        yield path, tree


def formatted(golden: dict[str, Any]) -> str:
    """JSON with a line for each row, tensor and token."""
    parts = []
    for name, value in golden.items():
        items = value.items() if isinstance(value, dict) else enumerate(value)
        lines = [f"{json.dumps(key)}: " * isinstance(value, dict) + json.dumps(item) for key, item in items]
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        parts.append(f' "{name}": {opening}\n  ' + ",\n  ".join(lines) + f"\n {closing}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def difference(before: str, after: str, limit: int) -> str:
    """Lines that differ; of long ones the part around the first difference."""
    lines = []
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for _, a, b, c, d in (block for block in matcher.get_opcodes() if block[0] != "equal"):
        old, new = before.splitlines()[a:b], after.splitlines()[c:d]
        pairs = enumerate(zip(old[0], new[0], strict=False)) if old and new else ()
        begin = max(0, next((place for place, (one, other) in pairs if one != other), 0) - 60)
        lines.append(f"  line {a + 1}" + f", from character {begin}" * bool(begin))
        lines += [f"  {sign} {line[begin : begin + 200]}" for sign, side in (("-", old), ("+", new)) for line in side]
    return "\n".join(lines[:limit] + [f"  and {len(lines) - limit} lines more"] * (len(lines) > limit))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare with what is recorded, and change nothing")
    parser.add_argument("--code", type=Path, default=ROOT, help="checkout whose commands are used [this one]")
    parser.add_argument("--texts", action="store_true", help="with --check: show how texts differ")
    parser.add_argument("cases", nargs="*", help=f"some of: {', '.join(CASES)}, killed, old_runs, texts [all]")
    options = parser.parse_args()
    chosen = options.cases or [*CASES, "killed", "old_runs", "texts"]
    failed = []
    with tempfile.TemporaryDirectory(prefix="golden-") as work:
        recorder = Recorder(options.code.resolve(), Path(work).resolve())
        for name in chosen:
            try:
                texts = recorder.record(name)
            except AssertionError as error:
                failed.append(name)
                print(f"{name} failed: {error}", flush=True)
                continue
            for file, text in texts.items():
                path = FOLDER / file
                if not options.check:
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(text)
                elif (recorded := path.read_text()) != text:
                    failed += [file] * (name != "texts")
                    print(f"{file} differs")
                    if name != "texts" or options.texts:
                        print(difference(recorded, text, 20 if name != "texts" else 1000))
            print(f"{name} done", flush=True)
    if options.check or failed:
        print(f"{len(failed)} of {len(chosen)} differ: {' '.join(failed)}" if failed else "all numbers are equal")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
