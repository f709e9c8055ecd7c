"""`python -m runs list`, `best` and `show`: what people see of many runs and of one."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import runs_list
from runs.__main__ import main
from runs.index import load
from runs.list import columns_that_fit, default_columns, list_runs
from runs.summary import summarise
from tests.conftest import ROOT
from tests.runs.folders import Command, make_run, write_rows


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four runs: two kinds of model, one that failed, one archived."""
    make_run(tmp_path, "plain", day=1, losses=(3.0, 2.0))
    make_run(tmp_path, "timed", "--ebt_type", "time_embed", day=2, losses=(3.0, 1.7, 1.9))
    make_run(tmp_path, "broken", "--mcmc_num_steps", "4", day=3, losses=(), cause="error: KeyError")
    (make_run(tmp_path, "old", day=4, losses=(1.0,)) / "archived").touch()
    return tmp_path


@pytest.fixture
def runs(logs: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(logs, capsys)


def test_the_table_tells_runs_apart(runs: Command) -> None:
    lines = [line.split() for line in runs("list").splitlines() if line.strip()]
    assert lines[0] == ["run", "state", "ebt_type", "mcmc_num_steps", "max_steps", "step", "train_loss", "valid_loss",
                        "best", "time"]  # fmt: skip
    assert lines[2] == ["broken_20260103-120000_03abcd", "failed", "default", "4", "1"]
    assert lines[3] == ["timed_20260102-120000_02abcd", "finished", "time_embed", "1", "30", "30", "2", "1.9000",
                        "1.7000", "15", "s"]  # fmt: skip
    assert " ".join(lines[5]) == "3 runs. 1 archived: --archived shows them too."


def test_filter_and_sort(runs: Command) -> None:
    assert runs.names() == ["broken", "timed", "plain"]
    assert runs.names("--archived") == ["old", "broken", "timed", "plain"]
    assert runs.names("--where", "archived") == ["old"]
    assert runs.names("--where", "ebt_type=time_embed and valid_loss<2") == ["timed"]
    assert runs.names("--where", "best.valid_loss<1.8 or state=failed") == ["broken", "timed"]
    assert runs.names("--where", "valid_loss=none") == ["broken"]
    assert runs.names("--where", "began<2026-01-03") == ["timed", "plain"]
    assert runs.names("--sort", "valid_loss") == ["timed", "plain", "broken"]
    assert runs.names("--sort", "-valid_loss") == ["plain", "timed", "broken"]
    assert runs.names("--sort", "name", "--limit", "2") == ["broken", "plain"]


def test_all_or_as_many_as_asked_for(runs: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_runs(["--logs_dir", str(runs.logs)], newest=2) == 0
    assert "2 of 3 runs; --all shows all." in capsys.readouterr().out
    assert "3 runs." in runs("list", "--all")
    assert "1 of 3 runs" in runs("list", "--limit", "1")
    assert "1 run.\n" in runs("list", "--where", "name=plain")
    assert runs("list", "--where", "name=nobody") == f"None of the 4 runs in {runs.logs} fits.\n"
    assert len(json.loads(runs("list", "--json"))) == 3, "a program gets all"


def test_json_has_everything(runs: Command) -> None:
    (run,) = json.loads(runs("list", "--json", "--where", "name=timed"))
    assert run["settings"]["ebt_type"] == "time_embed" and run["last"]["valid_loss"] == 1.9
    assert run["best"]["valid_loss"] == {"value": 1.7, "step": 20}
    assert (run["state"], run["tags"], run["problems"]) == ("finished", [], [])
    assert json.loads(runs("list", "--json", "--columns", "name,best.valid_loss", "--limit", "1")) == [
        {"name": "broken", "best.valid_loss": None}
    ]


def test_csv_is_safe_in_a_spreadsheet(runs: Command) -> None:
    (runs.logs / "runs" / "plain_20260101-120000_01abcd" / "tags.json").write_text('["=cmd()", "a\\nb"]')
    rows = list(csv.reader(io.StringIO(runs("list", "--csv", "--columns", "name,tags,valid_loss", "--sort", "name"))))
    assert rows == [["name", "tags", "valid_loss"], ["broken", "", ""], ["plain", "'=cmd() 'a\\nb'", "2.0"],
                    ["timed", "", "1.9"]]  # fmt: skip


def test_mistakes_of_a_list(runs: Command) -> None:
    assert runs.refused("list", "--where", "state=failed and valid_los<2").split("\n") == [
        "--where: no run has a setting or metric valid_los: did you mean valid_loss?",
        "  state=failed and valid_los<2",
        "                   ^^^^^^^^^",
    ]
    assert "did you mean best.valid_loss?" in runs.refused("list", "--where", "best.valid_los<2")
    assert runs.refused("list", "--where", "valid_loss<low").startswith(
        "--where: valid_loss is a number: compare it with one.\n"
    )
    assert runs.refused("list", "--sort", "-valid_los") == (
        "--sort is valid_los: no run has a setting or metric valid_los: did you mean valid_loss?"
    )
    assert runs.refused("list", "--columns", "id,xyzzy") == (
        "--columns is xyzzy: no run has a setting or metric xyzzy: see python -m runs list --help."
    )
    assert runs.refused("list", "--columns", ",") == (
        "--columns is empty: give names with commas between them, as id,ebt_type,valid_loss."
    )
    assert runs.refused("list", "--json", "--csv") == "--json and --csv are both given: remove one of them."
    assert runs.refused("list", "--limit", "0") == (
        "--limit is 0: give a whole number of at least 1, or --all instead."
    )


def test_settings_that_are_none_everywhere_and_none_yet_measured_can_be_asked_for(runs: Command) -> None:
    assert runs.names("--where", "finetuning_model_ckpt=none") == ["broken", "timed", "plain"]
    assert runs.names("--where", "flops>1 or epoch=5") == ["timed", "plain"]


def test_no_runs_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Command(tmp_path / "none", capsys)
    assert runs("list", "--where", "valid_loss<2") == (
        f"There are no runs in {tmp_path}/none: python train_model.py makes one; --logs_dir names another folder.\n"
    )
    assert runs.refused("show", "last") == (
        f"RUN is last: {tmp_path}/none/runs has no runs yet; --logs_dir names another folder."
    )


def test_a_narrow_screen_has_the_columns_that_matter(logs: Path) -> None:
    rows = [record for record in load(logs) if record.name in ("plain", "timed")]
    columns = ["id", "state", "ebt_type", "step", "train_loss", "valid_loss", "best.valid_loss", "seconds"]
    assert columns_that_fit(rows, columns, 1000) == columns
    assert columns_that_fit(rows, columns, 60) == ["id", "state", "ebt_type", "best.valid_loss"]
    assert columns_that_fit(rows, columns, 10) == ["id"]


def test_swept_values_come_first_and_empty_columns_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for day, rate in enumerate(("0.001", "0.002"), 1):
        name, flags = f"rates-wd={rate}-{'x' * 40}", ["--weight_decay", rate, "--max_steps", str(10 * day)]
        folder = make_run(tmp_path, name, *flags, "--recipe", ("s1", "s2")[day - 1], day=day, losses=())
        changes = {"how": "sweep", "changes": {"weight_decay": float(rate)}}
        (folder / "lineage.json").write_text(json.dumps(changes))
    runs = Command(tmp_path, capsys)
    head, _, second, *_ = [line.split() for line in runs("list").splitlines() if line.strip()]
    assert head[:3] == ["run", "state", "weight_decay"] and second[2] == "0.002"
    assert not {"step", "train_loss", "valid_loss", "best", "time", "tags"} & set(head), "no run has any"
    rows = load(tmp_path)
    assert columns_that_fit(rows, default_columns(rows), 50) == ["id", "state", "weight_decay"]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    (line,) = [line for line in runs("list").splitlines() if "0.001" in line and "…" in line]
    assert f"…{rows[1].run_id[-6:]}" in line


def test_best(runs: Command) -> None:
    output = runs("best")
    assert output.startswith("timed_20260102-120000_02abcd: validation loss 1.7000 at step 20, the lowest of 2.\n")
    assert [line.split()[0] for line in output.splitlines()[4:6]] == [
        "timed_20260102-120000_02abcd",
        "plain_20260101-120000_01abcd",
    ]
    assert runs("best", "valid_accuracy", "--where", "ebt_type=default").startswith(
        "plain_20260101-120000_01abcd: validation accuracy 50.0% at step 20, the highest of 1.\n"
    )
    assert runs.refused("best", "tokens") == (
        "METRIC is tokens: neither a low nor a high value of it is better; "
        "python -m runs list --sort tokens sorts by it."
    )
    assert runs.refused("best", "valid_los") == (
        "METRIC is valid_los: no run has a setting or metric valid_los: did you mean valid_loss?"
    )
    assert runs.refused("best", "--where", "name=broken") == (
        "METRIC is valid_loss: no run that fits has measured it yet."
    )


def test_a_run_is_told_from_its_parent_or_the_nearest_earlier_run(logs: Path) -> None:
    child = make_run(logs, "child", "--ebt_type", "time_embed", "--seed", "3", "--no-mcmc_step_size_learnable", day=5,
                     losses=(2.5, 1.6, 1.65), valid_thinking_gain=0.2)  # fmt: skip
    write_rows(child / "alarms.jsonl", {"step": 3, "kind": "plateau", "text": "x"})
    verdicts = [{"kind": "loader", "text": "starved by the loader."}, 5, {"text": "memory has room.", "good": True}]
    (child / "usage.json").write_text(json.dumps({"verdicts": verdicts}))
    records = load(logs)
    words = summarise(records[0], records)
    assert words.against is not None and (words.against.name, words.relation) == ("timed", "the nearest earlier run")
    assert words.changes == {"mcmc_step_size_learnable": (True, False), "seed": (0, 3)}
    assert words.summary == [
        "An EBT of size tiny with time_embed on pydocs, 30 steps.",
        "Other than the nearest earlier run, timed_20260102-120000_02abcd: mcmc_step_size_learnable off and "
        "seed 3 instead of 0.",
    ]
    assert words.stats == [
        "Step 30 of 30 in 15 s of training, 200 tokens/s.",
        "It read 3,000 tokens and took 30 billion FLOPs.",
        "Training loss 1.7500 (best 1.7000 at step 20).",
        "Validation loss 1.6500 (best 1.6000 at step 20).",
        "One attempt on desk.",
        "Memory has room.",
    ]
    assert words.takeaways == [
        "Its best validation was at step 20; since then it got worse by 0.05.",
        "At step 30 its validation loss 1.6500 is better than that of timed_20260102-120000_02abcd (1.9000) by 0.25; "
        "with one seed each it is not known how much of this is chance.",
        "Thinking helped: the loss fell by 0.2 nats from the first step of the descent to the last.",
        "An alarm: plateau.",
        "Starved by the loader.",
    ]
    lineage = {"parent": "plain_20260101-120000_01abcd", "how": "rerun", "changes": {}}
    (child / "lineage.json").write_text(json.dumps(lineage))
    records = load(logs)
    words = summarise(records[0], records)
    assert words.against is not None and (words.against.name, words.relation) == ("plain", "its parent")
    assert list(words.changes) == ["ebt_type", "mcmc_step_size_learnable", "max_steps", "seed"]


def test_what_cannot_be_compared_is_not(logs: Path) -> None:
    other_text = make_run(logs, "text", "--tokenizer", "bpe:300", day=5, losses=(1.0,))
    begun = make_run(logs, "begun", day=6, losses=(), cause="interrupted: SIGTERM")
    write_rows(begun / "metrics.jsonl", {"step": 0, "valid_loss": 6.2, "valid_thinking_gain": -0.3})
    records = load(logs)
    assert [record.path for record in records[:2]] == [begun, other_text]
    assert summarise(records[0], records).takeaways == ["It did not finish: interrupted: SIGTERM."]
    assert summarise(records[1], records).takeaways == [
        "No verdict against old_20260104-120000_04abcd: the tokenizers differ, and there is no step at which both were "
        "validated over the same data."
    ]


def validated(step: int, loss: float, targets: int, tokens_per_byte: float = 1.0) -> dict[str, float]:
    bits = loss * tokens_per_byte / math.log(2)
    return {"step": step, "valid_loss": loss, "valid_targets": targets, "valid_bits_per_byte": bits}


def verdict(logs: Path, *flags: str, mine: list[dict[str, float]], theirs: list[dict[str, float]]) -> str:
    """What the takeaways say of two runs, the newer of which has these flags."""
    for day, (rows, words) in enumerate(((theirs, ()), (mine, flags)), 1):
        write_rows(make_run(logs, f"run{day}", *words, day=day, losses=()) / "metrics.jsonl", *rows)
    records = load(logs)
    sentences = [text for text in summarise(records[0], records).takeaways if "run1_" in text]
    return sentences[0].replace("run1_20260101-120000_01abcd", "A") if sentences else ""


def test_a_verdict_is_of_equal_steps_and_equal_tokens(tmp_path: Path) -> None:
    other = ("--weight_decay", "0.1")
    chance = "; with one seed each it is not known how much of this is chance."

    def compare(name: str, mine: list[dict[str, float]], theirs: list[dict[str, float]], *flags: str) -> str:
        return verdict(tmp_path / name, *(flags or other), mine=mine, theirs=theirs)

    # 200 steps against 100: only where both were validated, and not in between
    long, short = (
        [validated(step, 3 - step / 100, 64) for step in (0, 50, 150, 200)],
        [validated(step, 3 - step / 90, 64) for step in (0, 50, 100)],
    )
    assert compare("steps", long, short) == (
        f"At step 50 its validation loss 2.5000 is worse than that of A (2.4444) by 0.0556{chance}"
    )
    none = "No verdict against A: there is no step at which both were validated over the same tokens."
    assert compare("gap", [validated(60, 2.0, 64)], [validated(50, 2.1, 64), validated(70, 1.9, 64)]) == none
    assert compare("zero", [validated(0, 5.0, 64)], [validated(0, 6.0, 64)]) == ""
    assert compare("tokens", [validated(50, 2.0, 64)], [validated(50, 2.1, 512)]) == none
    # a sample while training, the whole split at the end
    whole = [validated(50, 2.0, 64), validated(100, 1.4, 64), validated(100, 1.6, 512)]
    assert compare("whole", whole, [*whole[:2], validated(100, 1.5, 512)]) == (
        f"At step 100 its validation loss 1.6000 is worse than that of A (1.5000) by 0.1{chance}"
    )
    assert compare("tie", whole, whole) == "At step 100 its validation loss is 1.6000, as that of A."
    assert compare("seed", [validated(50, 2.0, 64)], [validated(50, 2.1, 64)], "--seed", "1") == (
        "At step 50 its validation loss is 2; A, of another seed, has 2.1000: 0.1 by chance."
    )
    assert compare("data", whole, whole, "--max_documents", "5") == (
        "No verdict against A: other data (--max_documents 0 and 5)."
    )
    assert compare("limits", whole, whole, "--limit_val_batches", "3") == (
        "No verdict against A: other limits of validation (--limit_val_batches all and 3)."
    )
    assert "is worse" in compare("each", whole, [*whole[:2], validated(100, 1.5, 512)], "--limit_val_batches", "1")
    # as many tokens, but of rows of another length: another sample. The whole split is no multiple of both.
    assert compare("rows", [validated(50, 2.0, 512)], [validated(50, 2.1, 512)], "--context_length", "32") == none
    assert "is better" in compare("all", [validated(50, 2.0, 500)], [validated(50, 2.1, 500)], "--context_length", "32")
    # bits per byte of the same 512 bytes
    assert compare("bits", [validated(50, 4.0, 128, 0.25)], [validated(50, 2.0, 512)], "--tokenizer", "bpe:300") == (
        f"At step 50 its validation bits per byte 1.4427 is better than that of A (2.8854) by 1.44{chance}"
    )


def test_a_sample_does_not_hide_that_a_run_got_worse(tmp_path: Path) -> None:
    rows = [validated(50, 2.0, 64), validated(100, 2.2, 64), validated(100, 1.9, 512)]
    write_rows(make_run(tmp_path, losses=()) / "metrics.jsonl", *rows)
    (record,) = load(tmp_path)
    assert record.best["valid_loss"] == [1.9, 100] and record.best["valid_targets"] == [512, 100]
    assert summarise(record, [record]).takeaways == [
        "Its best validation was at step 50; since then it got worse by 0.2."
    ]


def test_rehearsals_are_marked_and_not_ranked(runs: Command) -> None:
    for day, flags in enumerate(
        (("--debug_mode",), ("--overfit_batches", "1"), ("--fast_dev_run",), ("--limit_val_batches", "2")), 5
    ):
        make_run(runs.logs, f"quick{day}", *flags, day=day, losses=(0.5,))
    output = runs("best")
    assert output.startswith("timed_20260102-120000_02abcd: validation loss 1.7000 at step 20, the lowest of 2.\n")
    assert output.endswith(
        "4 runs are left out: a rehearsal, validated on a part of the split, or not trained yet; "
        "python -m runs list --where rehearsal shows which.\n"
    )
    assert runs("best", "--where", "rehearsal~overfit").startswith("quick6_20260106-120000_06abcd: validation loss 0.5")
    assert runs.refused("best", "--where", "name=quick5").startswith(
        "METRIC is valid_loss: no run that fits can be ranked by it. 1 run is left out: a rehearsal"
    )
    listed = runs("list", "--columns", "name,best.valid_loss,rehearsal")
    assert [line.strip().split(maxsplit=2) for line in listed.splitlines() if "quick" in line] == [
        ["quick8", "0.5000*", "--limit_val_batches 2"],
        ["quick7", "0.5000*", "--fast_dev_run"],
        ["quick6", "0.5000*", "--overfit_batches 1"],
        ["quick5", "0.5000*", "--debug_mode"],
    ]
    assert "1.7000 " in listed and "* rehearsed, or validated on a part of the split: not ranked." in listed
    assert "*" not in runs("list", "--where", "rehearsal=none")
    assert "A rehearsal or a part of the validation split (--debug_mode): its losses are not ranked." in runs(
        "show", "quick5"
    )


def test_the_best_of_each_kind_of_validation(runs: Command) -> None:
    """Neither another text nor another number of tokens makes a run the best."""
    easy = make_run(runs.logs, "easy", "--max_documents", "5", day=5, losses=(0.9,))
    for day, targets, loss in ((6, 512, 1.5), (7, 512, 1.4), (8, 64, 1.0)):
        write_rows(make_run(runs.logs, f"n{day}", day=day, losses=()) / "metrics.jsonl", validated(10, loss, targets))
    lines = [line for line in runs("best").splitlines() if ": validation loss" in line]
    assert lines == [
        "n7_20260107-120000_07abcd: validation loss 1.4000 at step 10, the lowest of 2 on pydocs, bytes, "
        "max_documents 0, 512 tokens.",
        "timed_20260102-120000_02abcd: validation loss 1.7000 at step 20, the lowest of 2 on pydocs, bytes, "
        "max_documents 0.",
        "n8_20260108-120000_08abcd: validation loss 1 at step 10, the lowest of 1 on pydocs, bytes, "
        "max_documents 0, 64 tokens.",
        f"{easy.name}: validation loss 0.9000 at step 10, the lowest of 1 on pydocs, bytes, max_documents 5.",
    ]
    assert "Only runs of one line can be compared" in runs("best")
    write_rows(make_run(runs.logs, "bpe", "--tokenizer", "bpe:300", day=9, losses=()) / "metrics.jsonl",
               validated(10, 4.0, 128, 0.25))  # fmt: skip
    assert runs("best", "valid_bits_per_byte").startswith(
        "bpe_20260109-120000_09abcd: validation bits per byte 1.4427 at step 10, the lowest of 3 on pydocs"
    )


def test_a_validation_before_the_first_step_is_no_result(runs: Command) -> None:
    folder = make_run(runs.logs, "begun", day=5, losses=())
    write_rows(folder / "metrics.jsonl", validated(0, 0.1, 512))
    assert "begun" not in runs("best").partition("left out")[0]
    write_rows(folder / "metrics.jsonl", validated(10, 1.2, 64))
    assert runs("best").count("begun") == 2 and "left out" not in runs("best")
    (record,) = (record for record in load(runs.logs) if record.name == "begun")
    assert record.best["valid_loss"] == [1.2, 10]


def test_a_flag_that_an_older_version_did_not_have_is_no_change(logs: Path) -> None:
    file = logs / "runs" / "plain_20260101-120000_01abcd" / "config.json"
    config = json.loads(file.read_text())
    del config["energy"]["update_from"], config["trainer"]["seed"]
    config["energy"]["of_the_past"] = 3
    file.write_text(json.dumps(config))
    make_run(logs, "again", day=5)
    records = load(logs)
    assert summarise(records[0], [records[0], records[-1]]).changes == {"of_the_past": (3, None)}


def test_show(runs: Command) -> None:
    folder = runs.logs / "runs" / "timed_20260102-120000_02abcd"
    write_rows(folder / "journal.jsonl", {"time": 1e9, "tag": "RESULT", "text": "better\x1b[2J\nand cheaper"})
    write_rows(folder / "attempts.jsonl", {"attempt": 2, "start": "2026-01-02T14:00:00+0000", "job": "17"})
    write_rows(folder / "attempts.jsonl", {"attempt": 2, "end": "2026-01-02T15:00:00+0000", "cause": "killed"})
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text() + "nonsense\n")
    (folder / "tags.json").write_text('["paper"]')
    output = runs("show", "timed")
    assert "\x1b" not in output
    for expected in (
        "  killed, begun 2026-01-02 12:00:00  [paper]\n",
        "Summary\n  An EBT of size tiny with time_embed on pydocs, 30 steps.\n",
        "  It did not finish: killed.\n",
        "Settings that are not the default\n  run_name   timed\n  ebt_type   time_embed\n  max_steps  30\n",
        "  valid_loss          1.9000    1.7000 at step 20       nats per token\n",
        "  2: 2026-01-02 14:00:00 to 2026-01-02 15:00:00, steps ? to ?, job 17: killed\n",
        "RESULT: 'better\\x1b[2J'\n    and cheaper\n",
        "What is missing\n  a line of metrics.jsonl cannot be read\n",
    ):
        assert expected in output
    assert "It did not finish: failed (error: KeyError)." in runs("show", "broken")
    assert runs.refused("show", "timd") == ("RUN is timd: there is no such run; choose timed, or last.")
    (folder / "config.json").unlink()
    output = runs("show", folder.name)
    assert "Its settings are not known." in output and "  config.json is missing\n" in output
    assert "Of 1 something is missing: python -m runs show RUN says what." in runs("list")


def test_a_run_is_found_by_a_path_wherever_it_lies(runs: Command, tmp_path: Path) -> None:
    away = make_run(tmp_path / "elsewhere", "copied")
    assert "copied_20260101-120000_01abcd" in runs("show", str(away))
    lost = away.rename(tmp_path / "lost")
    assert runs.refused("show", str(lost)) == (
        f"RUN is {lost}: it does not lie in a folder runs/, where runs are; give its id instead."
    )


def test_commands_answer_without_torch() -> None:
    code = (
        "import sys; from runs.__main__ import main\n"
        "main(['list', '--logs_dir', '/nowhere']); print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "False\n"


def test_the_commands_of_the_page_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the order in which they stand there; what asks is answered, and what trains is only checked."""
    for day, name in enumerate(("wide", "try", "other"), 1):
        make_run(tmp_path, name, "--compile_model", day=day, cause="diverged" if name == "other" else "finished")
    text = (ROOT / "docs" / "runs.md").read_text()
    own = "list|show|diff|best|rerun|note|todo|journal|tag|archive|rm"
    commands = re.findall(rf"^python -m runs ((?:{own})\b.*?)(?: > .*)?$", text, re.MULTILINE)
    assert len(commands) > 20
    more = {"rerun": ["--dry_run"], "rm": ["--yes"]}
    for command in commands:
        words = [word if word != "diary.md" else str(tmp_path / word) for word in shlex.split(command)]
        assert main([*words, *more.get(words[0], []), "--logs_dir", str(tmp_path)]) == 0, capsys.readouterr().err


def test_the_benchmark_measures_both() -> None:
    results = runs_list.run(3, tries=1)
    assert [one.name for one in results] == ["runs list, index rebuilt", "runs list", "runs list --where --sort"]
    assert all(0 < one.value < 60 and "3 runs of 80 rows" in one.note for one in results)
