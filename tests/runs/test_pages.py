"""The pages from Python's side: what is read, kept, thinned out, escaped, and written anew."""

from __future__ import annotations

import json
import math
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import UserError
from runs.__main__ import main
from runs.metrics import LANGUAGE_TASK
from runs.pages import page, serve, write_after_run
from runs.pages.curves import Column, axis_values, curves_of, decimate, plain, read_columns, spark
from runs.pages.run_page import details_of, differing
from runs.pages.server import allowed, make_server
from runs.pages.site import Site, quoted, template
from runs.run import Run
from tests.runs.folders import fake_run


def data_of(file: Path) -> Any:
    """What a data file hands to the page."""
    return json.loads(file.read_text().partition(" = ")[2].rstrip(";\n"))


def index_of(logs: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = data_of(logs / "pages" / "runs.js")["runs"]
    return runs


floats = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(floats, max_size=400), st.integers(5, 60))
def test_decimation_keeps_ends_and_extremes_in_few_points(values: list[float], limit: int) -> None:
    array = np.array(values)
    indices = decimate(array, limit)
    assert len(indices) <= limit and sorted(set(indices)) == list(indices)
    if not values:
        return
    assert indices[0] == 0 and indices[-1] == len(values) - 1
    finite = array[np.isfinite(array)]
    if len(finite):
        left = array[indices][np.isfinite(array[indices])]
        assert left.min() == finite.min() and left.max() == finite.max()
    assert np.isfinite(array[indices]).all() == np.isfinite(array).all()  # a gap stays a gap


@given(st.lists(st.floats(-1e6, 1e6), min_size=62, max_size=400))
def test_every_stretch_keeps_its_own_extremes(values: list[float]) -> None:
    array = np.array(values)
    indices = decimate(array, 60)
    edges = np.linspace(0, len(array), 30).astype(int)
    for start, stop in pairwise(edges):
        inside = array[indices[(indices >= start) & (indices < stop)]]
        assert inside.min() == array[start:stop].min() and inside.max() == array[start:stop].max()


def test_metrics_are_read_as_far_as_they_can_be(tmp_path: Path) -> None:
    lines = [
        '{"step": 2, "train_loss": 3.0, "note": "x"}',
        '{"step": 1, "train_loss": NaN}',
        "not json",
        '{"train_loss": 9.0}',
        '{"step": "3", "train_loss": 9.0}',
        "[1, 2]",
        '{"step": 4, "train_loss": 1' + "0" * 400 + "}",
        '{"step": 5, "train_loss": Infinity}',
        '{"step": 6, "train_lo',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    columns = read_columns(tmp_path / "metrics.jsonl")
    assert columns["train_loss"].step.tolist() == [1, 2, 4, 5]
    assert plain(columns["train_loss"].value) == [None, 3, None, None]
    assert np.isnan(columns["note"].value).all()
    assert read_columns(tmp_path / "nothing.jsonl") == {}
    series = curves_of(columns, {})["series"]
    assert list(series) == ["train_loss"]  # a column without a number is no curve
    assert series["train_loss"]["title"] == "training loss" and series["train_loss"]["unit"] == "nats per token"


def test_many_rows_and_many_curves_make_a_small_page_with_every_spike() -> None:
    steps = np.arange(1, 100_001.0)
    value = np.sin(steps / 5000) + 3
    value[54_321] = 99.0
    columns = {f"gradient_norm/layer_{number}": Column(steps, value) for number in range(300)}
    columns |= {"step": Column(steps, steps), "tokens": Column(steps, 64 * steps), "train_loss": Column(steps, value)}
    curves = curves_of(columns, {})
    assert len(quoted(curves)) < 3_000_000
    assert all(99 in series["y"] and series["x"][-1] == 100_000 for series in curves["series"].values())
    assert curves["places"]["tokens"][-1] == 64 * 100_000 and len(curves["places"]["step"]) <= 400


def test_an_axis_that_was_not_recorded_is_left_out() -> None:
    steps = np.arange(10.0)
    columns = {"step": Column(steps, steps), "tokens": Column(steps, 5 * steps), "flops": Column(steps[8:], steps[8:])}
    assert axis_values(columns, "tokens").keys() == {"step", "tokens"}
    assert axis_values({}, "tokens") == {}


def test_a_small_curve_of_few_points() -> None:
    column = Column(np.array([10.0, 20.0, 30.0, 40.0]), np.array([3.0, 1.0, math.nan, 2.0]))
    assert spark({"train_loss": column}, LANGUAGE_TASK) == [3, 1, 2] and spark({}, LANGUAGE_TASK) == []


def test_a_series_says_over_how_much_it_was_evaluated() -> None:
    steps = np.array([0.0, 10.0, 20.0, 20.0])
    seen, loss = np.array([512.0, 64.0, 64.0, 512.0]), np.array([0.5, 2.0, 1.5, 1.8])
    columns = {"valid_loss": Column(steps, loss), "valid_targets": Column(steps, seen)}
    columns["valid_bits_per_byte"] = Column(steps, loss / math.log(2) / 4)  # four bytes a token
    series = curves_of(columns, {})["series"]
    assert series["valid_loss"]["of"] == [512, 64, 64, 512]
    assert series["valid_bits_per_byte"]["of"] == [1420, 177, 177, 1420]  # in proportion to the bytes
    assert series["valid_loss"]["instead"] == "valid_bits_per_byte"
    assert series["valid_loss"]["needs"] == ["data", "limits", "unit"]
    assert series["valid_bits_per_byte"]["needs"] == ["data", "limits"]
    columns["valid_accuracy"] = Column(steps[:2], loss[:2])  # rows that do not fit together say nothing
    assert "of" not in curves_of(columns, {})["series"]["valid_accuracy"]


def test_the_terms_of_a_loss_are_told_as_shares() -> None:
    steps = np.array([10.0, 20.0])
    columns = {
        "train_loss": Column(steps, np.array([4.0, 2.0])),
        "contrastive_loss": Column(steps, np.array([10.0, 10.0])),
    }
    series = curves_of(columns, {"contrastive_loss_coeff": 0.1})["series"]
    assert series["loss_share/contrastive_loss"]["y"] == [0.25, 0.5]
    assert series["loss_share/reconstruction"]["y"] == [0.75, 0.5]
    assert "loss_share/contrastive_loss" not in curves_of(columns, {})["series"]


def test_a_site_is_written_once_and_then_only_where_runs_change(tmp_path: Path) -> None:
    run, other = fake_run(tmp_path, "one", number=1), fake_run(tmp_path, "two", number=2)
    site = Site(tmp_path)
    written = site.write()
    assert (written.runs, written.rewritten, written.left) == (2, 2, 0)
    files = {file: file.stat().st_mtime_ns for file in tmp_path.glob("pages/**/*") if file.is_file()}
    assert tmp_path / "pages" / "plotly.min.js" in files and (tmp_path / "compare.html").exists()
    assert site.write().rewritten == 0
    assert files == {file: file.stat().st_mtime_ns for file in tmp_path.glob("pages/**/*") if file.is_file()}

    (run / "journal.jsonl").write_text('{"time": 1, "tag": "TRY", "text": "why not"}\n')
    assert site.write().rewritten == 1
    curves, details = (tmp_path / "pages" / "data" / f"{run.name}{end}" for end in (".curves.js", ".js"))
    assert curves.stat().st_mtime_ns == files[curves] and details.stat().st_mtime_ns > files[details]
    assert data_of(details)["journal"][0]["text"] == "why not"

    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 210, "train_loss": 0.5, "valid_loss": 0.4}\n')
    assert site.write().rewritten == 1
    assert data_of(curves)["series"]["valid_loss"]["x"][-1] == 210
    assert index_of(tmp_path)[1]["metrics"]["valid_loss"] == [0.4, 0.4, 210]

    shutil.rmtree(other)
    assert site.write().runs == 1
    assert not list(tmp_path.glob(f"pages/**/{other.name}*")) and len(index_of(tmp_path)) == 1


def test_another_version_writes_all_pages_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fake_run(tmp_path)
    Site(tmp_path).write()
    page_of_run = tmp_path / "pages" / f"{run.name}.html"
    page_of_run.write_text("of an older version")
    assert Site(tmp_path).write().rewritten == 0
    monkeypatch.setattr("runs.pages.site.version", lambda: "newer")
    assert Site(tmp_path).write().rewritten == 1 and "older" not in page_of_run.read_text()


def test_the_end_of_a_run_writes_its_page_first_and_others_while_time_lasts(tmp_path: Path) -> None:
    run, other = fake_run(tmp_path, "one", number=1), fake_run(tmp_path, "two", number=2)
    written = Site(tmp_path).write([run.name], seconds=0)
    assert (written.rewritten, written.left) == (1, 1)
    assert (tmp_path / "pages" / f"{run.name}.html").exists()
    assert not (tmp_path / "pages" / f"{other.name}.html").exists()
    assert {row["name"]: row["page"] for row in index_of(tmp_path)} == {"one": True, "two": False}
    assert write_after_run(tmp_path, run.name) == tmp_path / "index.html"
    assert (tmp_path / "pages" / f"{other.name}.html").exists()


def test_pages_that_cannot_be_written_cost_a_run_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fake_run(tmp_path)
    (tmp_path / "pages").write_text("in the way")
    assert write_after_run(tmp_path, run.name) is None
    errors = capsys.readouterr().err
    assert errors.startswith(f"the pages were not written: --logs_dir is {tmp_path}: the pages cannot be written there")
    assert errors.endswith("choose a folder you can write to, or free some space.\n") and errors.count("\n") == 1


def test_nothing_that_a_person_typed_is_read_as_html(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>&\u2028"
    run = fake_run(tmp_path, "evil <script>alert(1)</script>")
    (run / "journal.jsonl").write_text(json.dumps({"time": 1, "tag": evil, "text": evil}) + "\n")
    (run / "code.diff").write_text(evil)
    Site(tmp_path).write()
    for file in tmp_path.glob("pages/data/*.js"):
        assert not set("<>&\u2028") & set(file.read_text())
    assert data_of(tmp_path / "pages" / "data" / f"{run.name}.js")["diff"] == evil
    assert (
        "<title>evil &lt;script&gt;alert(1)&lt;/script&gt;</title>"
        in (tmp_path / "pages" / f"{run.name}.html").read_text()
    )
    assert "<q>" not in template("run.html", base="", title="<q>", file='"<q>')


def test_folders_of_any_kind_are_shown_as_far_as_known(tmp_path: Path) -> None:
    empty = tmp_path / "runs" / "empty 100% #1"
    empty.mkdir(parents=True)
    broken = fake_run(tmp_path, "broken")
    (broken / "config.json").write_text("{")
    (broken / "metrics.jsonl").write_bytes(b"\xff\x00{\n" + b'{"step": 1, "train_loss": NaN}\n')
    (broken / "heartbeat.json").write_text('{"time": NaN, "step": Infinity}')
    (broken / "tags.json").write_text('{"not": "a list"}')
    (broken / "lineage.json").write_text(json.dumps({"parent": broken.name}))
    (broken / "console.log").write_bytes(b"10%\r20%\r30%\nd\xff\n")
    long = tmp_path / "runs" / ("x" * 240)
    long.mkdir()
    assert Site(tmp_path).write().runs == 3
    by_id = {row["id"]: row for row in index_of(tmp_path)}
    assert by_id[empty.name]["file"] == "empty%20100%25%20%231" and by_id[empty.name]["state"] == "prepared"
    assert by_id[long.name]["page"] is False and by_id[broken.name]["metrics"] == {}
    details = data_of(tmp_path / "pages" / "data" / f"{broken.name}.js")
    assert details["heartbeat"] == {"time": None, "step": None} and details["lineage"] == []
    assert details["log"]["tail"] == "30%\nd\ufffd\n"
    assert data_of(tmp_path / "pages" / "data" / f"{empty.name}.js")["missing"] == [
        *("config.json", "attempts.jsonl", "metrics.jsonl")
    ]


def test_settings_unlike_the_default_are_marked(tmp_path: Path) -> None:
    run = fake_run(tmp_path, "s2", flags=("--recipe", "s2", "--model_size", "3xs", "--context_length", "17"))
    changed = {setting["name"] for setting in details_of(Run(run))["settings"] if setting["changed"]}
    assert changed == {"run_name", "recipe", "model_size", "context_length", "logs_dir"}


def test_lineage_goes_up_to_the_first_parent(tmp_path: Path) -> None:
    first, second, third = (fake_run(tmp_path, name, number=n) for n, name in enumerate(("first", "second", "third")))
    for child, parent in ((third, second), (second, first)):
        row = {"parent": parent.name, "how": "rerun", "changes": {"seed": 1}}
        (child / "lineage.json").write_text(json.dumps(row))
    chain = details_of(Run(third))["lineage"]
    assert [step["name"] for step in chain] == ["second", "first"] and all(step["here"] for step in chain)
    (first / "lineage.json").write_text(json.dumps({"parent": "../../etc", "how": "rerun"}))
    assert len(details_of(Run(third))["lineage"]) == 2


def test_columns_are_the_settings_that_differ_the_telling_ones_first() -> None:
    def row(**settings: Any) -> dict[str, Any]:
        return {"settings": {"same": 1, **settings}}

    rows = [row(seed=n, mcmc_num_steps=n % 3, odd=n == 0, **({"newer": 1} if n > 10 else {})) for n in range(20)]
    assert differing(rows) == ["mcmc_num_steps", "seed", "newer", "odd"]
    assert differing(rows[:1]) == [] and differing([]) == []


def test_the_command_writes_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_run(tmp_path, "one", number=1), fake_run(tmp_path, "two", number=2)
    assert page(["--logs_dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"runs: 2, pages written anew: 2\npage  {tmp_path / 'index.html'}\n"
    for run in (tmp_path / "runs").iterdir():
        (run / "console.log").write_text("more")
    assert page(["two", "--logs_dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("runs: 2, pages written anew: 1, 1 as they were\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["page", "--watch", "0"], "--watch is 0: give seconds from 0.5 to 86400, or nothing for 5."),
        (["page", "tny"], "RUN is tny: there is no such run; choose tiny, or last."),
        (["page", "--wach"], "unrecognized arguments: --wach: python -m runs page --help lists the options."),
        (
            ["serve", "--port", "70000"],
            "--port is 70000: give a whole number from 0 to 65535; 0 takes one that is free.",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_run(tmp_path)
    assert main([*words, "--logs_dir", str(tmp_path)]) == 2
    assert capsys.readouterr().err == message + "\n"


def test_a_folder_without_runs_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        page(["--logs_dir", str(tmp_path)])
    assert str(caught.value) == (
        f"--logs_dir is {tmp_path}: there is no {tmp_path / 'runs'} yet; "
        "train something first, or name the folder that has your runs."
    )


def test_a_busy_port_is_one_sentence(tmp_path: Path) -> None:
    fake_run(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError) as caught:
            serve(["--port", str(port), "--logs_dir", str(tmp_path)])
    assert str(caught.value) == (
        f"--port is {port}: another program listens there; choose another, or 0 for one that is free."
    )


def test_plotly_that_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_run(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("plotly is not installed, and the pages draw with its script: pip")):
        Site(tmp_path).write()


def test_the_server_shows_the_site_and_nothing_else(tmp_path: Path) -> None:
    run = fake_run(tmp_path)
    (run / "energy.png").write_bytes(b"png")
    (run / "pictures").mkdir()
    (run / "pictures" / "board_step_0000010.png").write_bytes(b"png")
    (run / "pictures" / "notes.txt").write_bytes(b"private")
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "last.png").write_bytes(b"weights")
    (tmp_path / "secret.png").write_bytes(b"no")
    (run / "outside.png").symlink_to("/etc/hostname")
    Site(tmp_path).write()
    server = make_server(tmp_path, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    assert server.server_address[0] == "127.0.0.1"

    def get(path: str, host: str | None = None) -> int:
        request = urllib.request.Request(address + path, headers={"Host": host} if host else {})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    shown = ["/", "/index.html", "/compare.html", "/pages/runs.js?1", f"/pages/{run.name}.html"]
    shown += ["/pages/assets/pages.css", f"/runs/{run.name}/energy.png"]
    shown += [f"/runs/{run.name}/pictures/board_step_0000010.png"]
    hidden = [
        f"/runs/{run.name}/pictures/notes.txt",
        f"/runs/{run.name}/pictures/",
        "/secret.png",
        f"/runs/{run.name}/config.json",
        f"/runs/{run.name}/checkpoints/last.png",
        "/runs/",
    ]
    hidden += [f"/runs/{run.name}/outside.png", "/pages/", "/pages/../../etc/hostname.html", "/..%2f..%2fetc/x.html"]
    try:
        assert [get(path) for path in shown] == [200] * len(shown)
        assert [get(path) for path in hidden] == [404] * len(hidden)
        assert get("/index.html", host="evil.example") == 403
    finally:
        server.shutdown()
        server.server_close()
    assert not allowed(tmp_path, "/pages/.hidden.js")


def test_neither_torch_nor_plotly_is_loaded(tmp_path: Path) -> None:
    fake_run(tmp_path)
    code = (
        "import sys; from runs.__main__ import main; status = main(sys.argv[1:]); "
        "assert not {'torch', 'plotly'} & set(sys.modules); sys.exit(status)"
    )
    subprocess.run([sys.executable, "-c", code, "page", "--logs_dir", str(tmp_path)], check=True, timeout=60)
