"""The pages in a real browser, opened from the disk: what a person sees and clicks, and nothing from the network."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from runs.pages.server import make_server
from runs.pages.site import Site
from tests.runs.folders import fake_run, make_point_run, make_puzzle_run

if not os.environ.get("CI"):
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
SCRIPT = "wide <script>alert(1)</script>"
NOISE = (0.0, 0.02, -0.01)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"there is no {CHROMIUM}: apt-get install chromium")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings with three seeds each, one run of another size with a dangerous name, and one without FLOPs."""
    logs = tmp_path_factory.mktemp("site") / "logs"
    for seed, noise in enumerate(NOISE):
        two = fake_run(logs, "two-steps", seed, offset=0.5 + noise, number=seed)
        fake_run(logs, "three-steps", seed, offset=noise, number=10 + seed, flags=("--mcmc_num_steps", "3"))
    wide = fake_run(logs, SCRIPT, offset=0.3, number=20, flags=("--model_size", "3xs"))
    fake_run(logs, "old", number=30, flops=False)
    fake_run(logs, "bare", number=25, rows=[])
    (two / "code.diff").write_text("diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n-old <b>\n+new\n")
    (wide / "samples.jsonl").write_text(json.dumps({"step": 1, "prompt": "<b>", "text": "<img src=x>"}) + "\n")
    (wide / "journal.jsonl").write_text(json.dumps({"time": 1, "tag": "IDEA", "text": "</script>"}) + "\n")
    (wide / "alarms.jsonl").write_text(json.dumps({"step": 5, "text": "loss <i>rises", "advice": "wait"}) + "\n")
    (wide / "divergence.jsonl").write_text(
        "".join(f'{{"step": {n}, "what": "spike {n}", "back_to": 0}}\n' for n in range(9))
    )
    (wide / "usage.jsonl").write_text("".join(f'{{"step": {n}, "cpu_percent": {n}}}\n' for n in range(9)))
    rows = [{"attempt": 1, "first_step": 0}, {"attempt": 1, "end": "x", "cause": "preempted", "last_step": 100}]
    rows += [{"attempt": 2, "first_step": 100}, {"attempt": 2, "end": "y", "cause": "diverged", "last_step": 200}]
    (wide / "attempts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Site(logs).write()
    return logs


class Window:
    """A page that fails the test for a message on its console or a request beyond the disk."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("console", lambda message: self.trouble.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        page.on("requestfailed", lambda request: self.trouble.append(f"failed: {request.url}"))
        page.on("request", lambda request: self.check(request.url))

    def check(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self.trouble.append(f"requested {url}")

    def names(self) -> list[str]:
        return self.page.locator("tbody .name a").all_inner_texts()

    def title_of_axis(self, plot: str = ".plot") -> str:
        return str(self.page.locator(f"{plot} .xtitle").first.text_content())


@pytest.fixture
def window(browser: Browser) -> Iterator[Window]:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, offline=True)
    context.set_default_timeout(60_000)
    opened = Window(context.new_page())
    yield opened
    context.close()
    assert not opened.trouble


@pytest.fixture
def index(window: Window, logs: Path) -> Window:
    window.page.goto((logs / "index.html").as_uri())
    return window


def test_the_index_lists_sorts_and_filters(index: Window) -> None:
    page = index.page
    assert len(index.names()) == 9 and index.names()[0] == "old"  # the newest first
    assert page.locator("tbody svg polyline").count() == 8
    page.click("th[data-key=best] button")
    best = [float(text) for text in page.locator("tbody tr td:nth-child(6)").all_inner_texts() if text]
    assert best == sorted(best) and index.names()[0] == "three-steps"
    page.click("th[data-key=best] button")
    assert page.get_attribute("th[data-key=best]", "aria-sort") == "descending" and index.names()[0] == "two-steps"
    page.fill("#search", "mcmc_num_steps=3 valid_loss<1.12")
    assert index.names() == ["three-steps"]
    page.fill("#search", "nothing like it")
    assert page.is_visible("#none") and index.names() == []
    page.fill("#search", "")
    page.click(".states button[data-value=diverged]")
    assert index.names() == [SCRIPT]
    page.reload()  # what was chosen stays
    assert index.names() == [SCRIPT]


def test_the_search_is_that_of_the_command_line(index: Window) -> None:
    page = index.page

    def search(query: str) -> list[str]:
        page.fill("#search", query)
        assert page.inner_text("#mistake") == "", query
        return sorted(set(index.names()))

    def mistake(query: str) -> list[str]:
        page.fill("#search", query)
        assert index.names() == [] and not page.is_visible("#none")
        return str(page.locator("#mistake").text_content()).split("\n  ")

    assert search("mcmc_num_steps=3 and seed=1 or name~SCRIPT") == ["three-steps", SCRIPT]
    assert search("not (seed=0 or seed=1) steps") == ["three-steps", "two-steps"]
    assert search("model_name=ebt old") == ["old"], "a setting that all runs share"
    assert search("best.valid_loss<1.12") == ["three-steps"] and search("valid_loss=none") == ["bare"]
    assert search("began>2027") == [] and len(search("began<2027 step>=200")) == 4
    assert search("rehearsal=none state!=finished") == [SCRIPT]
    assert mistake("old valid_los<2") == [
        *("no run has a setting or metric valid_los: did you mean valid_loss?", "old valid_los<2", "    ^^^^^^^^^")
    ]
    assert mistake("best.valid_los<2")[0].endswith("did you mean best.valid_loss?")
    assert mistake("valid_loss<low")[0] == "valid_loss is a number: compare it with one."
    assert mistake("valid_loss<") == [
        *("a value belongs after <: a number, a word, true, false or none.", "valid_loss<", "           ^")
    ]
    for query, sentence in {
        "(old": "this bracket is not closed.",
        "old)": "this bracket closes nothing.",
        "'old": "this quote is not closed.",
        "old and": "a setting or a metric belongs here, such as valid_loss<2.",
        "name~[": "this is no regular expression",
    }.items():
        assert mistake(query)[0].startswith(sentence)


def test_a_name_with_a_script_is_text_and_its_run_opens(index: Window) -> None:
    page = index.page
    page.click(f"text={SCRIPT}")
    page.wait_for_selector(".plot .main-svg")
    assert page.inner_text("h1") == SCRIPT and page.title() == SCRIPT
    headings = page.locator("h3").all_inner_texts()
    assert headings[:3] == ["Loss", "Loss after step \u2026", "Energy along the descent"]
    assert {"Processor", "Journal", "Samples", "Settings", "Record"} <= set(headings)
    assert page.locator(".plot").first.locator(".annotation").all_text_contents() == ["attempt 2"]
    text = page.inner_text("main")
    assert "<b><img src=x>" in text and "</script>" in text and "loss <i>rises" in text
    assert page.locator("main img").count() == 0
    assert page.locator(".alarms > li").all_inner_texts()[-1].split("\n") == [
        "step 8",
        "spike 8",
        "went back to step 0",
    ]
    assert page.locator(".alarms details li").count() == 4
    assert "--model_size" in page.locator("section", has_text="Settings").first.inner_text()
    assert index.title_of_axis() == "optimizer step"
    page.click("button[data-value=flops]")
    assert index.title_of_axis() == "training FLOPs"
    page.fill("input[name=smoothing]", "80")
    assert page.locator(".plot").first.locator("path.js-line").count() == 3  # training, pale and smoothed; validation
    page.click("a.back")
    page.wait_for_selector("tbody tr")


def test_a_failure_and_the_last_losses_are_on_top(window: Window, tmp_path: Path) -> None:
    run = fake_run(tmp_path, "broken", rows=[*validated({0: 6.0, 20: 3.0}, 64), {"step": 30, "train_loss": 2.5}])
    ended = {"attempt": 1, "end": "x", "cause": "error: KeyError", "last_step": 30}
    with open(run / "attempts.jsonl", "a") as file:
        file.write(json.dumps(ended) + "\n")
    (run / "console.log").write_text("Traceback\nKeyError: 'old'\nTraceback\n  raise KeyError\nKeyError: '<b>'\nbye\n")
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "pages" / f"{run.name}.html").as_uri())
    assert page.inner_text(".failure").split("\n\n") == ["Failed at step 30: error: KeyError", "KeyError: '<b>'"]
    assert "It did not finish" not in page.inner_text("main")
    facts = dict(text.split("\n")[:2] for text in page.locator(".fact").all_inner_texts())
    assert facts["Last validation loss"] == "3.0000" == facts["Best validation loss"]
    assert facts["Last training loss"] == "2.5000"
    heights = [page.locator(selector).bounding_box()["y"] for selector in (".failure", ".facts", ".plot >> nth=0")]  # type: ignore[index]
    assert heights == sorted(heights) and heights[1] < 400


def test_a_run_of_another_task_is_shown_in_its_own_words(window: Window, tmp_path: Path) -> None:
    runs = [
        make_point_run(tmp_path, "dull", day=1, scores=(0.1, 0.3, 0.4, 0.4, 0.5, 0.6)),
        make_point_run(tmp_path, "sharp", "--weight_decay", "0.2", day=2, scores=(0.2, 0.6, 0.7, 0.9, 0.8, 0.8)),
    ]
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "index.html").as_uri())
    hints = page.locator("thead button").evaluate_all("all => all.map((one) => [one.textContent, one.title])")
    assert ["Best valid.", "highest validation score, share of points"] in hints
    page.click("th[data-key=best] button")
    assert window.names() == ["sharp", "dull"]
    page.fill("#search", "points>=6000 best.valid_score>0.7")
    assert window.names() == ["sharp"]

    page.goto((tmp_path / "pages" / f"{runs[1].name}.html").as_uri())
    facts = dict(text.split("\n", 1) for text in page.locator(".fact").all_inner_texts())
    assert facts["Best validation score"] == "90.0\u2009%\nof points, step 40"
    assert facts["Last training score"].startswith("90.0\u2009%") and facts["Points"] == "6\u2009k"
    assert page.locator("h3").all_inner_texts()[0] == "Score" and "Speed" in page.locator("h3").all_inner_texts()
    page.click("button[data-value=points]")
    assert window.title_of_axis() == "points trained on"
    assert not {"nats", "tokens"} & set(page.inner_text("main").lower().split())

    page.goto((tmp_path / "compare.html").as_uri() + "#" + ",".join(run.name for run in runs))
    lead = page.inner_text(".verdict .lead")
    assert lead.startswith("sharp is higher by 20.00 percentage points than dull at step 60.")
    page.click("button[data-value=points]")
    expect(page.locator(".verdict .lead")).to_contain_text("at 6\u2009k points")


def test_a_family_of_measures_is_one_chart_and_shares_are_percentages(window: Window, tmp_path: Path) -> None:
    run = make_puzzle_run(tmp_path, "thinker")
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "pages" / f"{run.name}.html").as_uri())
    page.wait_for_selector(".plot .main-svg")
    headings = page.locator("h3").all_inner_texts()
    assert headings[:6] == [
        *("Solved", "Solved after \u2026 steps, at the end", "Loss", "Solved after \u2026 steps"),
        *("Harder ones solved after \u2026 steps", "Energy of \u2026 puzzles"),
    ]
    assert not any(character.isdigit() for heading in headings for character in heading), "no chart of one step alone"

    def card(title: str) -> Any:
        return page.locator("section.card", has=page.get_by_text(title, exact=True))

    at_end = card("Solved after \u2026 steps, at the end")
    assert at_end.locator(".xtick").all_text_contents() == ["1", "2", "4", "8", "16", "32"]
    assert at_end.locator(".xtitle").text_content() == "steps"
    assert at_end.locator("path.js-line").count() == 4, "two measures on two splits"
    assert all(text.endswith("%") for text in at_end.locator(".ytick").all_text_contents())
    by_step = card("Solved after \u2026 steps")
    assert by_step.locator(".legend li").all_inner_texts() == ["1", "2", "4", "8", "16", "32"]
    assert card("Energy of \u2026 puzzles").locator("path.js-line").count() == 2
    assert card("Loss").locator(".legend li").all_inner_texts() == ["Training loss", "Validation loss", "Test loss"]
    assert "test accuracy 90.0\u2009%" in page.inner_text("main")
    facts = dict(text.split("\n", 1) for text in page.locator(".fact").all_inner_texts())
    assert facts["Best validation solved"] == "88.4\u2009%\nof puzzles, step 1,200"
    page.goto((tmp_path / "index.html").as_uri())
    assert page.locator("tbody tr td:nth-child(6)").all_inner_texts() == ["88.4\u2009%"]


def test_pictures_are_seen_by_training_step(window: Window, tmp_path: Path) -> None:
    run = make_puzzle_run(tmp_path, "thinker")
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "pages" / f"{run.name}.html").as_uri())
    place, picture = page.locator(".steps output"), page.locator(".by-step figure img")
    assert place.inner_text() == "step 1,200, 13 of 13", "the newest first"
    page.focus(".steps input")
    page.keyboard.press("ArrowLeft")
    assert place.inner_text() == "step 1,100, 12 of 13"
    assert page.get_attribute(".steps input", "aria-valuetext") == "step 1,100"
    page.keyboard.press("Home")
    assert str(picture.get_attribute("src")).endswith(f"/{run.name}/pictures/board_step_0000000.png")
    assert picture.get_attribute("alt") == "board at step 0"
    page.click(".strip button:nth-child(3)")
    assert place.inner_text() == "step 200, 3 of 13"
    page.click(".theme")
    assert place.inner_text() == "step 200, 3 of 13", "the page is drawn anew with the step that was chosen"
    assert page.locator("img").evaluate_all("all => all.every((one) => one.complete && one.naturalWidth > 0)")
    assert page.locator(".pictures > figure figcaption").all_inner_texts() == ["walk.png"], "a picture without a step"


def test_pictures_of_two_runs_are_compared_at_one_step(window: Window, tmp_path: Path) -> None:
    runs = [make_puzzle_run(tmp_path, "thinker"), make_puzzle_run(tmp_path, "looper", day=2, gain=-0.1, steps=600)]
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "compare.html").as_uri() + "#" + ",".join(run.name for run in runs))
    captions = page.locator(".by-step figcaption")
    assert captions.all_inner_texts() == ["thinker, step 1,200", "looper, step 600"]
    page.focus(".steps input")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert captions.all_inner_texts() == ["thinker, step 0", "looper, step 50"], "the newest of each until then"
    assert page.locator(".by-step img").evaluate_all("all => all.every((one) => one.naturalWidth > 0)")


def test_charts_are_drawn_wherever_they_are_and_nothing_lies_over_them(window: Window, tmp_path: Path) -> None:
    """A full-page picture and a print do not scroll first."""
    rows: list[dict[str, Any]] = [
        {"step": step, "train_loss": 2.0, "gradient_norm": 3.0 + step, "clipped_share": 1.0, "step_size": step}
        | {"loader_wait_share": step / 100, "energy_gap": step, "learning_rate/decay": step, "tokens_per_second": step}
        for step in range(10, 60, 10)
    ]
    run = fake_run(
        tmp_path, "few", rows=[*rows, *validated({0: 3.0, 20: 2.5, 40: 2.4}, 64), *validated({50: 2.3}, 512)]
    )
    (run / "usage.jsonl").write_text(
        "".join(f'{{"step": {n}, "cpu_percent": {n}, "loader_wait_share": {n}}}\n' for n in range(9))
    )
    Site(tmp_path).write()
    page = window.page
    page.goto((tmp_path / "pages" / f"{run.name}.html").as_uri())
    plots = page.locator(".plot")
    assert plots.count() == page.locator(".plot .cartesianlayer").count() >= 8
    headings = page.locator("h3").all_inner_texts()
    assert headings.count("Waiting for data") == 1 and "Time spent waiting for data" not in headings
    for index in range(plots.count()):
        plot = plots.nth(index)
        assert plot.locator(".xtitle").text_content() and plot.locator(".ytitle").text_content()
        assert plot.locator("path.point").count() >= 4, "few points are marked one by one"
        plot.scroll_into_view_if_needed()
        plot.hover()
        bar, curve = (plot.locator(name).first.bounding_box() for name in (".modebar", ".nsewdrag"))
        assert bar and curve and bar["y"] + bar["height"] <= curve["y"] + 1
    loss = page.locator("section", has=page.get_by_text("Loss", exact=True)).locator("path.point")
    assert loss.count() == 5 + 3 + 1  # training, validation of a sample, and of the whole split, which is no part of it
    norm = page.locator("section.card", has=page.get_by_text("Gradient norm", exact=True))
    assert norm.locator(".warn").inner_text() == "\u26a0 clipped to 1 at 100\u2009% of the steps"
    assert norm.locator("path.js-line").count() == 2  # the curve, and what is allowed
    wide = page.locator(".main-svg").first.get_attribute("width")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator(".main-svg").first.get_attribute("width") == "1002"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_selector(f".main-svg[width='{wide}']")


def test_the_list_has_its_dates_at_1400_pixels(browser: Browser, tmp_path: Path) -> None:
    for number, flags in enumerate(
        (("--debug_mode",), ("--mcmc_num_steps", "3"), ("--model_size", "3xs", "--seed", "3"))
    ):
        fake_run(
            tmp_path, f"a-rather-long-name-{number}", number=number, flags=(*flags, "--context_length", f"{number + 9}")
        )
    Site(tmp_path).write()
    page = browser.new_page(viewport={"width": 1400, "height": 800})
    page.goto((tmp_path / "index.html").as_uri())
    box = page.locator("td", has_text="01-02 03:04").first.bounding_box()
    assert box and box["x"] + box["width"] < 1400
    assert page.locator("tbody .name", has_text="name-0").locator(".mark").inner_text() == "not ranked"
    page.close()


def test_two_runs_are_compared_on_every_axis(index: Window) -> None:
    page = index.page
    assert page.is_disabled("#compare")
    page.locator("tr", has_text="three-steps").first.locator("input").check()
    page.locator("tr", has_text="script").first.locator("input").check()
    page.click("text=Compare 2 runs")
    page.wait_for_selector(".verdict")
    assert page.locator(".legend li").all_inner_texts() == ["three-steps", SCRIPT]
    assert "three-steps is lower by 0.3" in page.inner_text(".verdict")
    assert "One seed each" in page.inner_text(".verdict") and "was ahead throughout" in page.inner_text(".verdict")
    differences = page.inner_text("table.settings")
    assert "--mcmc_num_steps" in differences and "3xs" in differences and "logs_dir" not in differences
    titles = []
    for axis in ("step", "tokens", "seconds", "flops"):
        page.click(f"button[data-value={axis}]")
        titles.append(index.title_of_axis())
    assert titles == ["optimizer step", "tokens trained on", "training time, s", "training FLOPs"]
    page.select_option("select[name=metric]", "train_loss")
    page.check("input[name=logy]")
    page.check("input[name=logx]")
    assert page.locator(".plot .ytitle").text_content() == "Training loss, nats per token"
    page.click("button[aria-label^='remove three']")
    expect(page.locator(".chip")).to_have_count(1)


def test_seeds_become_a_band_with_a_verdict(window: Window, logs: Path) -> None:
    page = window.page
    files = [run.name for run in sorted((logs / "runs").glob("t*-steps*"))]
    page.goto(f"{(logs / 'compare.html').as_uri()}#{','.join(files)}")
    page.wait_for_selector(".verdict")
    assert page.locator(".legend li").all_inner_texts() == ["three-steps (3 seeds)", "two-steps (3 seeds)"]
    assert page.locator(".plot path.js-fill").count() == 2
    assert "more than seed noise" in page.inner_text(".verdict .lead")
    assert page.locator("table.settings tr", has_text="--seed").inner_text().split("\t") == ["--seed", *["0, 1, 2"] * 2]
    page.goto(f"{(logs / 'compare.html').as_uri()}#{','.join(files[:3])}")
    page.wait_for_selector("text=mean")
    assert "three-steps (3 seeds) at step 200: mean 1.1303, from 1.1170 to 1.1469" in page.inner_text(".verdict")
    page.go_back()
    page.wait_for_selector("text=more than seed noise")
    page.uncheck("input[name=grouped]")
    assert page.locator(".legend li").count() == 6
    assert "+new" in page.locator("pre.diff").first.text_content()  # type: ignore[operator]


def test_a_run_without_data_takes_no_axis_and_no_metric_from_the_others(window: Window, logs: Path) -> None:
    page = window.page
    files = [next((logs / "runs").glob(f"{name}_*")).name for name in ("old", "three-steps", "bare")]
    page.goto(f"{(logs / 'compare.html').as_uri()}#{','.join(files)},..%2F..%2Fevil")
    page.wait_for_selector(".verdict")
    assert page.locator("select[name=metric]").input_value() == "valid_loss"
    assert page.locator(".segments button").all_inner_texts() == ["Step", "Tokens", "Time", "FLOPs"]
    assert page.inner_text(".lacking") == "Tokens: not recorded by bare; Time: not recorded by bare; " + (
        "FLOPs: not recorded by old, bare"
    )
    assert page.locator(".legend li").all_inner_texts() == ["old", "three-steps"]
    assert page.inner_text("#legend p") == "Not drawn, since it was not recorded: bare."
    page.click("button[data-value=flops]")
    assert page.locator(".legend li").all_inner_texts() == ["three-steps"]
    assert page.inner_text("#legend p") == "Not drawn, since it was not recorded: old, bare."


def validated(losses: dict[int, float], targets: int, tokens_per_byte: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "tokens": 64 * step,
            "seconds": step,
            "flops": step,
            "valid_loss": loss,
            "valid_targets": targets,
        }
        | {"valid_bits_per_byte": loss * tokens_per_byte / math.log(2)}
        for step, loss in losses.items()
    ]


def test_a_verdict_only_where_a_statistician_would_sign_it(window: Window, tmp_path: Path) -> None:
    curve = {step: 4.0 - step / 100 for step in (0, 20, 40, 60)}
    better = {step: loss - 0.2 for step, loss in curve.items()}
    runs = {
        "base": ((), validated(curve, 512)),
        "wd": (("--weight_decay", "0.1"), validated(better, 512)),
        "same": (("--weight_decay", "0.2"), validated(curve, 512)),
        "odd": (("--weight_decay", "0.3"), validated({0: 4.0, 30: 1.0, 50: 0.9, 70: 0.8}, 512)),
        "sample": (("--weight_decay", "0.4"), validated(better, 64) + validated({60: 3.5}, 512)),
        "fewer": (("--weight_decay", "0.5"), validated(better, 64)),
        "begun": (("--weight_decay", "0.6"), validated({0: 1.0}, 512)),
        "text": (("--max_documents", "5"), validated(better, 512)),
        "limit": (("--limit_val_batches", "3"), validated(better, 512)),
        "bpe": (("--tokenizer", "bpe:300"), validated({step: 4 * y - 1 for step, y in curve.items()}, 128, 0.25)),
    }
    files = {
        name: fake_run(tmp_path, name, number=number, flags=flags, rows=rows).name
        for number, (name, (flags, rows)) in enumerate(runs.items())
    }
    Site(tmp_path).write()
    page = window.page

    def verdict(*names: str, axis: str = "step") -> str:
        page.goto(f"{(tmp_path / 'compare.html').as_uri()}#{','.join(files[name] for name in names)}")
        for name in names:
            page.wait_for_selector(f'.chip a:text-is("{name}")')
        page.select_option("select[name=metric]", "valid_loss")
        page.click(f"button[data-value={axis}]")
        return page.inner_text(".verdict .lead")

    chance = " One seed each, so nobody knows how much is chance: repeat with another --seed. "
    throughout = "The better one was ahead throughout, from step 20."
    assert verdict("base", "wd") == f"wd is lower by 0.2000 nats per token than base at step 60.{chance}{throughout}"
    assert verdict("base", "same") == "base and same are equal at step 60. No winner."
    nowhere = "No verdict: there is no step after the first at which all of them were measured over the same tokens."
    assert [verdict("base", name) for name in ("odd", "fewer", "begun")] == [nowhere] * 3
    # a sample while training, the whole split at the end: told there
    assert verdict("base", "sample") == (
        f"base is lower by 0.1000 nats per token than sample at step 60.{chance}"
        "The better one was measured beside it only once."
    )
    assert verdict("base", "text") == (
        "No verdict: these runs have other data (--max_documents 0 and 5), so their numbers do not mean the same."
    )
    assert "other limits of validation (--limit_val_batches all and 3)" in verdict("base", "limit")
    assert verdict("base", "bpe").startswith("bpe is lower by 0.3607 bits per byte than base at step 60.")
    assert "in bits per byte, since the tokenizers differ" in page.inner_text(".verdict")
    assert verdict("base", "wd", "text").startswith("wd is lower by 0.2000 nats per token than base at step 60.")
    assert (
        "Left out, since runs with other data (--max_documents 0 and 5) cannot be compared: text."
        in page.inner_text(".verdict")
    )
    # one that was measured elsewhere does not take the verdict from the others
    assert verdict("odd", "base", "wd", "begun").startswith(
        "wd is lower by 0.2000 nats per token than base at step 60."
    )
    assert "at which all were measured over the same tokens: odd, begun." in page.inner_text(".verdict")
    assert verdict("base", "odd", axis="seconds") == (
        "No verdict: there is no place on this axis at which all of them were measured over the same tokens."
    )


def test_no_runs_and_archived_runs(window: Window, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    Site(tmp_path).write()
    window.page.goto((tmp_path / "index.html").as_uri())
    assert "No runs yet: python train_model.py makes the first." in window.page.inner_text("#none")
    (fake_run(tmp_path, "old", number=1) / "archived").touch()
    fake_run(tmp_path, "empty", number=2, rows=[])
    Site(tmp_path).write()
    window.page.reload()
    assert window.names() == ["empty"]
    window.page.check("input[name=archived]")
    assert window.names() == ["empty", "old"]
    window.page.click("text=empty")
    window.page.wait_for_selector("text=No metrics yet.")


def test_light_and_dark(browser: Browser, logs: Path) -> None:
    context = browser.new_context(color_scheme="dark")
    page = context.new_page()
    page.goto((logs / "index.html").as_uri())
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.click("button.theme")
    light = page.evaluate(background)
    page.reload()
    assert dark == "rgb(19, 22, 25)" and light == page.evaluate(background) == "rgb(251, 251, 252)"
    context.close()


def test_a_page_that_is_watched_shows_news_by_itself(browser: Browser, tmp_path: Path) -> None:
    run = fake_run(tmp_path, "first")
    Site(tmp_path).write(every=0.2)
    server = make_server(tmp_path, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    try:
        page.goto((tmp_path / "index.html").as_uri())
        page.fill("#search", "tiny")
        served = browser.new_page()
        served.goto(f"http://127.0.0.1:{server.server_address[1]}/pages/{run.name}.html")
        fake_run(tmp_path, "tiny-second", number=5)
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"step": 400, "train_loss": 0.125}\n')
        Site(tmp_path).write(every=0.2)
        page.wait_for_selector("tbody tr", timeout=60_000)
        assert page.locator("tbody .name a").all_inner_texts() == ["tiny-second"]
        served.wait_for_selector("text=0.1250", timeout=60_000)
    finally:
        server.shutdown()
        server.server_close()
        page.close()


@pytest.fixture(scope="module")
def math_page(browser: Browser, logs: Path) -> Iterator[Page]:
    page = browser.new_page()
    page.goto((logs / "compare.html").as_uri())
    yield page
    page.close()


def test_the_arithmetic_of_curves(math_page: Page) -> None:
    def js(text: str) -> Any:
        return math_page.evaluate(text)

    assert js("[-1, 0, 5, 10, 15, 20, 21].map((x) => EBT.math.interpolate([0, 10, 20], [1, 2, 4], x))") == [
        *(None, 1, 1.5, 2, 3, 4, None)
    ]
    assert js("EBT.math.interpolate([], [], 0)") is None
    assert js("EBT.math.smooth([1, 3, null, 5], 0)") == [1, 3, None, 5]
    assert js("EBT.math.smooth([1, 3, null, 5], 0.5)") == pytest.approx([1, 7 / 3, None, 27 / 7])
    assert js("EBT.math.median([1, 9, 2, 3, 4], 3)") == [1, 5, 2, 3, 3]
    assert js("EBT.math.withoutGaps([1, 2, null, 4], [1, null, 3, 4])") == [[1, 4], [1, 4]]
    curves = "[[[0, 10], [0, 10]], [[5, 20], [1, 1]]]"
    assert js(f"EBT.math.grid({curves}, 3)") == [5, 7.5, 10]
    assert js("EBT.math.grid([[[0, 1], [0, 0]], [[2, 3], [0, 0]]])") == []
    assert js(f"EBT.math.band({curves}, [5, 10])") == {
        **{"x": [5, 10], "mean": [3, 5.5]},
        **{"low": [1, 1], "high": [5, 10]},
    }
    along = "EBT.math.alongAxis({places: {step: [0, 10], tokens: [0, 640]}}, 'tokens', [5, 10, 11])"
    assert js(along) == [320, 640, 640]


def test_curves_meet_where_all_were_measured_over_the_same(math_page: Page) -> None:
    def common_points(
        *curves: Sequence[tuple[float, float, int | None]], near: float = 0
    ) -> list[tuple[float, list[float]]]:
        points = [[{"x": x, "y": y, "of": of} for x, y, of in curve] for curve in curves]
        common = math_page.evaluate("([points, near]) => EBT.math.commonPoints(points, near)", [points, near])
        return [(each["x"], each["values"]) for each in common]

    a = [(x, x / 10, 64) for x in (10, 20, 30)]
    assert common_points(a, [(15, 1.0, 64), (20, 5.0, 64), (40, 1.0, 64)]) == [(20, [2, 5])]
    assert common_points(a, [(20, 5.0, 512)]) == [] == common_points(a, [])
    assert common_points([*a, (30, 9.0, 512)], [(30, 7.0, 64), (30, 8.0, 512)]) == [
        (30, [9, 8])
    ]  # the larger one counts
    assert common_points(a, [(10.1, 1.0, 64), (19, 2.0, 64)], near=0.2) == [(10, [1, 1])]
    assert common_points([(5, 1.0, None)], [(5, 2.0, None)], [(5, 3.0, None)]) == [(5, [1, 2, 3])]


def test_where_one_curve_overtakes_another(math_page: Page) -> None:
    def turns(*leads: float, least: float = 0) -> list[tuple[int, int, bool]]:
        words = [list(range(len(leads))), list(leads), least]
        changes = math_page.evaluate("([xs, leads, least]) => EBT.math.leadChanges(xs, leads, least)", words)
        return [(turn["from"], turn["to"], turn["leads"]) for turn in changes]

    assert turns(-2, -1, 1, 2) == [(1, 2, True)] and turns(1, 2, -1) == [(1, 2, False)]
    assert turns(1, 2, 3) == [] == turns(0, 0, 0) == turns()
    assert turns(-1, 0, 0, 1) == [(0, 3, True)]
    # a tremble around the other curve is no change of lead
    assert turns(-9, 0.1, -0.1, 0.1, 9, least=1) == [(0, 4, True)]


def test_a_difference_is_judged_by_the_noise_of_seeds(math_page: Page) -> None:
    def verdict(first: list[float], second: list[float]) -> dict[str, Any]:
        result: dict[str, Any] = math_page.evaluate("([a, b]) => EBT.math.welchTest(a, b)", [first, second])
        return result

    assert verdict([1.0], [2.0]) == {"kind": "unknown", "difference": -1, "noise": None}
    assert verdict([1.0, 1.02, 0.98], [1.5, 1.52, 1.48])["kind"] == "beyond"
    assert verdict([1.0, 1.02, 0.98], [1.01, 1.03, 0.99])["kind"] == "within"
    # Welch: equal spreads of 0.02 and three seeds each have four degrees of freedom.
    assert verdict([1.0, 1.02, 0.98], [1.0, 1.02, 0.98])["noise"] == pytest.approx(
        2.7764 * 0.02 * math.sqrt(2 / 3), 1e-4
    )
    # One seed against three: its noise is taken to be theirs, with their two degrees of freedom.
    assert verdict([1.0], [1.0, 1.02, 0.98])["noise"] == pytest.approx(4.3027 * 0.02 * math.sqrt(1 + 1 / 3), 1e-4)
    # Of three settings the best was picked: three pairs share the 5 %.
    three = math_page.evaluate("EBT.math.welchTest([1, 1.02, 0.98], [1, 1.02, 0.98], 3).noise")
    assert three == pytest.approx(3.9608 * 0.02 * math.sqrt(2 / 3), 1e-4)
    table = [(1, 0.95, 12.706), (2.5, 0.95, 3.5747), (30, 0.95, 2.0423), (1e4, 0.99, 2.5763)]
    for freedom, share, expected in table:
        assert math_page.evaluate(f"EBT.math.studentT({freedom}, {share})") == pytest.approx(expected, 1e-3)
    assert verdict([1.0, 1.0], [1.0, 1.0]) == {"kind": "within", "difference": 0, "noise": 0}


def test_runs_that_differ_in_the_seed_alone_are_one_group(math_page: Page) -> None:
    def run(file: str, **settings: Any) -> dict[str, Any]:
        entries = [{"name": name, "value": value, "compared": name != "run_name"} for name, value in settings.items()]
        return {"file": file, "settings": entries}

    runs = [
        run("a", run_name="x", seed=0, steps=2),
        run("b", run_name="x", seed=0, steps=3),
        run("c", run_name="y", seed=1, steps=2),
        *(run("d"), run("e")),  # nothing is known of these, so nothing says that they are alike
    ]
    groups = math_page.evaluate("(runs) => EBT.math.bySeed(runs).map((group) => group.map((run) => run.file))", runs)
    assert groups == [["a", "c"], ["b"], ["d"], ["e"]]
