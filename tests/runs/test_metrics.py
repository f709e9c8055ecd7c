"""What the columns of a record mean, and the record as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runs.__main__ import main
from runs.metrics import LANGUAGE_TASK, Metric, best_values, by_epoch, schema, to_csv
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("valid_loss", Metric("validation loss", "nats per token", "lower")),
        ("test_top5", Metric("test top-5 accuracy", "share of tokens", "higher")),
        ("train_loss_step_12", Metric("training loss after step 12", "nats per token", "lower")),
        ("flops", Metric("training FLOPs so far", "FLOPs")),
        ("gradient_norm/network.head.weight", Metric("gradient norm of network.head.weight")),
        ("learning_rate", Metric("learning rate of the weights")),
        ("learning_rate/step_size", Metric("learning rate of the step size")),
        ("learning_rate/x0.0778419", Metric("learning rate of x0.0778419")),
        ("of_a_newer_version", Metric("of a newer version")),
    ],
)
def test_a_column_is_described(name: str, meaning: Metric) -> None:
    assert LANGUAGE_TASK.measure(name) == meaning


@given(st.text())
def test_any_name_is_described(name: str) -> None:
    metric = LANGUAGE_TASK.measure(name)
    assert metric.better in ("lower", "higher", None) and (metric.title or not name)
    assert json.loads(json.dumps(schema([name]))) == {name: vars(metric)}


def test_best_is_by_the_metrics_own_direction() -> None:
    values = {10: 3.0, 20: 1.0, 30: math.nan, 12_345_678: 2.0}
    names = ("valid_loss", "valid_accuracy", "energy_gap", "learning_rate/a")
    best = best_values([{"step": step, **dict.fromkeys(names, value)} for step, value in values.items()], LANGUAGE_TASK)
    assert best == {"valid_loss": (1.0, 20), "valid_accuracy": (3.0, 10), "valid_targets": (0.0, 10)}


def test_the_best_is_of_the_largest_evaluation_after_step_0() -> None:
    measured = [(0, 512, 0.5), (10, 64, 2.0), (20, 64, 1.5), (20, 512, 1.8)]
    rows = [{"step": step, "valid_targets": seen, "valid_loss": loss} for step, seen, loss in measured]
    assert best_values(rows, LANGUAGE_TASK)["valid_loss"] == (1.8, 20)
    assert best_values(rows[:3], LANGUAGE_TASK)["valid_loss"] == (1.5, 20)
    assert best_values(rows[3:], LANGUAGE_TASK, best_values(rows[:3], LANGUAGE_TASK))["valid_loss"] == (1.8, 20)


ROWS: list[dict[str, Any]] = [
    {"step": 0, "epoch": 0.0, "tokens": 0, "valid_loss": 6.0},
    {"step": 10, "epoch": 0.5, "tokens": 100, "train_loss": 4.0, "step_size": 1.0, "learning_rate/decay": 0.1},
    {"step": 20, "epoch": 1.0, "tokens": 200, "train_loss": 2.0, "step_size": 3.0, "learning_rate/decay": 0.2},
    {"step": 20, "epoch": 1.0, "tokens": 200, "valid_loss": 2.5},
    {"step": 30, "epoch": 1.5, "tokens": 300, "train_loss": 1.0},
]


def test_an_epoch_is_means_of_training_and_the_last_of_the_rest() -> None:
    before, first, second = by_epoch(ROWS)
    assert before == {"step": 0, "epoch": 0, "tokens": 0, "valid_loss": 6.0}
    assert first == {
        **{"step": 20, "epoch": 1, "tokens": 200, "train_loss": 3.0, "step_size": 2.0},
        **{"learning_rate/decay": 0.2, "valid_loss": 2.5},
    }
    assert (second["step"], second["epoch"], second["train_loss"]) == (30, 2, 1.0)


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1e308, 1.5e308], 1.25e308), ([1e308, -1e308], 0.0), ([float("inf"), 1.0], float("inf")), ([0.25, 0.75], 0.5)],
)
def test_the_mean_of_numbers_whose_sum_is_none(values: list[float], mean: float) -> None:
    (row,) = by_epoch([{"epoch": 1.0, "train_loss": value} for value in values])
    assert row["train_loss"] == mean


def test_the_mean_of_opposite_infinities_is_no_number() -> None:
    (row,) = by_epoch([{"epoch": 1.0, "a": float("inf")}, {"epoch": 1.0, "a": float("-inf")}])
    assert math.isnan(row["a"])


value = st.integers(-(10**6), 10**6) | st.floats(allow_nan=False) | st.text(alphabet=st.characters(codec="utf-8"))
some_rows = st.lists(st.dictionaries(st.sampled_from(["step", "epoch", "a", 'b"c,', "train_loss"]), value))


@given(some_rows)
def test_csv_holds_what_the_rows_hold(rows: list[dict[str, Any]]) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(rows), newline="")))
    filled = [row for row in rows if row]
    assert len(read) >= len(filled) - sum(len(rows[0]) == 0 for _ in rows[:1])
    by_epoch(rows)
    text = to_csv(rows)
    assert all(str(cell).replace('"', '""') in text for row in rows for cell in row.values())


def run_with(logs: Path, lines: str) -> Path:
    folder = logs / "runs" / "wide_20260101-000000_abcdef"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"run": {"run_name": "wide"}}))
    (folder / "metrics.jsonl").write_text(lines)
    return folder


def test_export_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    run_with(tmp_path, 'garbage\n[1]\n{"step": 5, "epoch": Infinity}\n' + lines + '{"step": 40, "tr')
    assert main(["export", "wide", "--logs_dir", str(tmp_path)]) == 0
    header, *table = capsys.readouterr().out.splitlines()
    assert header.startswith("step,epoch,tokens,") and [line.split(",")[1] for line in table] == ["0", "1", "2"]
    out = tmp_path / "wide.csv"
    assert main(["export", "wide", "--every", "row", "--out", str(out), "--logs_dir", str(tmp_path)]) == 0
    assert len(out.read_text().splitlines()) == 1 + 1 + len(ROWS) and capsys.readouterr().out == f"{out}\n"


def test_export_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run_with(tmp_path, "")
    logs = ("--logs_dir", str(tmp_path))
    for words, message in [
        (["wide"], f"RUN is {folder.name}: it has measured nothing yet; choose a run that has trained."),
        (["wade"], "RUN is wade: there is no such run; choose wide"),
        (["wide", "--every", "day"], "argument --every: invalid choice: 'day' (choose from "),
    ]:
        assert main(["export", *words, *logs]) == 2
        assert capsys.readouterr().err.startswith(message)
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')
    assert main(["export", "wide", "--out", str(tmp_path / "no" / "x.csv"), *logs]) == 2
    assert "x.csv: No such file or directory; give a file in a folder that exists." in capsys.readouterr().err


def test_the_command_loads_no_torch() -> None:
    code = "import sys; from runs.__main__ import main; main(['export', 'x']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).returncode == 0
