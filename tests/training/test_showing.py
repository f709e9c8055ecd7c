"""What a person sees at the end of a run, and that none of it can spoil the run."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from config import SettingsError, parse_command_line
from config.record import differences
from config.task_flags import all_flags
from config.twin import baseline_config
from core.errors import or_report
from core.text import printable_lines
from runs.pictures import picture_path, pictures_by_step, remove_pictures_after
from tasks.show.language import beginning
from tasks.show.walk import Curve, Glyphs, Words, draw_descent, energy_plot, glyphs
from tests.conftest import TrainCommand

MEAN = np.array([5.0, -2.0, -3.0, -3.2, -3.3, -3.3, -3.3, -3.2, -3.1])
CURVE = Curve(MEAN - 1, MEAN, MEAN + 1, np.linspace(5.5, 1.5, 9), truth=-1.0)
PLAIN = glyphs("ascii")
WORDS = Words("positions", "true next token", "nats per token")


def test_the_plot_shows_mean_quartiles_and_the_true_token() -> None:
    lines = energy_plot(CURVE, 2, glyphs("utf-8"), WORDS)
    plot, steps, losses = lines[:8], lines[8], lines[9]
    assert max(map(len, lines)) <= 80
    assert plot[0].split()[0] == "6.00" and plot[-1].split()[0] == "-4.30"
    assert sum(line.count("●") for line in plot) == 9
    assert sum(line.count("┈") > 20 for line in plot) == 1
    assert steps.split() == ["steps", "0", "1", "2*", "3", "4", "5", "6", "7", "8"]
    assert losses.split() == ["loss", "5.50", "5.00", "4.50", "4.00", "3.50", "3.00", "2.50", "2.00", "1.50"]
    for column, step in ((plot[1].index("●"), "0"), (steps.index("0"), "0")):
        assert column == steps.index(step)


def test_the_plot_is_ascii_where_it_must_be() -> None:
    assert PLAIN == Glyphs("o", "|", "-", "|", "+", "^", "v") == glyphs(None) == glyphs("no such encoding")
    lines = energy_plot(CURVE, 2, PLAIN, WORDS)
    assert "\n".join(lines).isascii() and sum(line.count("o") for line in lines[:8]) == 9


def test_steps_that_leave_the_picture_do_not_squeeze_the_rest() -> None:
    mean = MEAN.copy()
    mean[6:] = 1e6, np.nan, np.inf
    curve = CURVE._replace(
        low=mean - 1, mean=mean, high=mean + 1, loss=np.append(CURVE.loss[:6], [1e5, np.nan, np.inf])
    )
    lines = energy_plot(curve, 2, PLAIN, WORDS)
    assert float(lines[0].split()[0]) < 20 and "^" in lines[0]
    assert sum(line.count("o") for line in lines[:8]) == 6
    assert lines[9].split()[-3:] == ["large"] * 3


def test_a_walk_without_any_finite_energy_is_drawn_empty() -> None:
    nothing = np.full(9, np.nan)
    curve = Curve(nothing, nothing, nothing, nothing, float("nan"))
    assert not any("o" in line for line in energy_plot(curve, 2, PLAIN, WORDS)[:8])


def test_many_steps_fit_and_keep_the_trained_number() -> None:
    mean = np.linspace(1, 0, 41)
    lines = energy_plot(Curve(mean, mean, mean, mean, 0.0), 7, PLAIN, WORDS)
    assert max(map(len, lines)) <= 80
    assert "7*" in lines[8].split() and lines[8].split()[-1] == "40"


def test_the_picture_is_a_png() -> None:
    from tests.support.builders import build_model

    model = build_model(parse_command_line(["--model_name", "ebt", "--model_size", "4xs"]), 258, 256, 257)
    file = io.BytesIO()
    draw_descent(CURVE, model.walk_settings, WORDS, file)  # type: ignore[arg-type]
    assert file.getvalue().startswith(b"\x89PNG") and len(file.getvalue()) > 10_000
    # read on a white page and on a dark one: no background, and letters neither black nor white
    pixels = np.asarray(Image.open(file).convert("RGBA")) / 255
    assert (pixels[0, :, 3] == 0).all()
    drawn = pixels[pixels[..., 3] == 1][:, :3] @ (0.2126, 0.7152, 0.0722)
    assert drawn.min() > 0.2 and drawn.max() < 0.75


def test_text_of_a_model_cannot_steer_the_terminal() -> None:
    assert printable_lines("a\x1b[2J\tb\r\nc\u202e\x00é", "utf-8") == ["a\\x1b[2J\\tb\\r", "c\\u202e\\x00é"]
    assert printable_lines("é●", "ascii") == ["\\xe9\\u25cf"]


def test_a_prompt_is_the_beginning_of_a_document_that_goes_on() -> None:
    tokens = np.array([9, 1, 2, 9, 3, 4, 5, 6, 9, 7])
    assert beginning(tokens, 9, 3).tolist() == [9, 3, 4, 5]
    assert beginning(tokens, 9, 100).tolist() == [9, 3, 4, 5, 6]


def test_what_cannot_be_shown_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def full() -> None:
        raise OSError(28, "No space left\non device")

    or_report("the descent", full)
    assert capsys.readouterr().err == "could not show the descent: OSError: [Errno 28] No space left on device\n"


def test_the_twin_differs_in_the_model_and_its_rate_only() -> None:
    energy = "--model_name ebt --recipe s2 --mcmc_step_size auto --compare_baseline"
    shape = "--model_size xxs --embedding_dim 192 --seed 3 --max_steps 70 --peak_learning_rate 0.1"
    config = parse_command_line(f"{energy} {shape} --run_name a --resume_training_ckpt last --no_wandb".split())
    changed = {name: new for name, (_, new) in differences(config, baseline_config(config)).items()}
    assert {name: value for name, value in changed.items() if all_flags()[name].group != "energy"} == {
        "run_name": "a-transformer++",
        "model_name": "baseline_transformer",
        "recipe": "residual",
        "peak_learning_rate": 0.0012,
        "resume_training_ckpt": None,
        "compare_baseline": False,
    }
    long = replace(config, run=replace(config.run, run_name="é" * 100))
    assert baseline_config(long).run.run_name == "é" * 80 + "-transformer++"


def test_the_twin_of_equal_flops_takes_more_steps_of_the_same_schedule() -> None:
    given = "--model_name ebt --compare_baseline --max_steps 70 --warm_up_steps 7 --max_scheduling_steps 140 --no_wandb"
    config = parse_command_line([*given.split(), "--run_name", "a"])
    equal, longer = baseline_config(config), baseline_config(config, 2.26)
    assert {name: new for name, (_, new) in differences(equal, longer).items()} == {
        "run_name": "a-transformer++-flops",
        "max_steps": 158,
        "warm_up_steps": 16,
        "max_scheduling_steps": 316,
    }
    plain = parse_command_line(["--model_name", "ebt", "--compare_baseline", "--max_steps", "70"])
    assert baseline_config(plain, 2.26).optimizer.warm_up_steps is None  # a tenth of the run, as it was


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            "--model_name baseline_transformer",
            "is not used by --model_name baseline_transformer: remove it, or choose --model_name ebt.",
        ),
        (
            "--model_name ebt --only_test --only_test_model_ckpt last",
            "has no effect with --only_test: remove one of them.",
        ),
        (
            "--model_name ebt --execution_mode finetune --finetuning_model_ckpt a.ckpt",
            "is not used by --execution_mode finetune: remove it, or choose --execution_mode pretrain.",
        ),
    ],
)
def test_a_comparison_needs_an_ebt_trained_from_scratch(flags: str, words: str) -> None:
    with pytest.raises(SettingsError) as problem:
        parse_command_line(["--compare_baseline", *flags.split()])
    assert str(problem.value) == f"--compare_baseline {words}"


def test_the_end_of_a_run(train_command: TrainCommand) -> None:
    output = train_command.ebt()(
        "--max_steps", "50", "--run_name", "small", "--compare_baseline", "--log_every_n_steps", "10"
    )
    assert re.search(r"loss after steps 0: \d\.\d{4}, 1: \d\.\d{4}; thinking gains -?\d\.\d{4} nats per token", output)
    assert "energy by steps taken, 128 positions of held-out text" in output
    assert re.search(r"the true token has the lower energy at \d+% of \d+ held-out positions", output)
    assert re.search(r"  prompt \| \S.*\n(.*\n)*?  sample \| ", output)
    mine, other, longer = sorted((train_command.logs / "runs").iterdir(), key=lambda folder: len(folder.name))
    assert (mine / "energy.png").read_bytes().startswith(b"\x89PNG") and not (other / "energy.png").exists()
    for folder, name in ((other, "small-transformer++"), (longer, "small-transformer++-flops")):
        config = json.loads((folder / "config.json").read_text())
        assert config["run"]["run_name"] == name and config["optimizer"]["peak_learning_rate"] == 0.0024
    table = output[output.index("valid split, nats per token and bits per byte") :]
    rows = [line.split() for line in table.splitlines() if line.split()[:1] in (["ebt"], ["Transformer++,"])]
    assert [row[:4] for row in rows] == [
        ["ebt", "394,498", "50", "6,400"],
        ["Transformer++,", "263,040", "50", "6,400"],
        ["Transformer++,", "263,040", str(config["trainer"]["max_steps"]), f"{128 * config['trainer']['max_steps']:,}"],
    ]
    assert "…" not in table, "80 columns hold every number"
    flops = [float(row[4]) for row in rows]
    assert flops[2] == pytest.approx(flops[0], rel=0.02) and flops[1] < flops[0] / 2
    times = float(re.search(r"A step of the EBT takes (\S+) times the FLOPs", table).group(1))  # type: ignore[union-attr]
    assert times == pytest.approx(flops[0] / flops[1], abs=0.06) and 2 < times < 3
    assert "run folder" in table and str(mine) in table
    assert "valid split" not in (mine / "console.log").read_text().split("run folder")[1]


def test_nothing_that_is_shown_can_fail_a_run(train_command: TrainCommand) -> None:
    fault = f"""
    import tasks.show.language, tasks.show.walk
    import training.report as report
    report.FEWEST_STEPS = 1
    def full(path, write):
        raise OSError(28, "No space left on device")
    tasks.show.walk.write_atomically = full
    tasks.show.language.sample = None
    report.TRAIN_SCRIPT = {sys.executable!r}
    """
    output = train_command.ebt().with_fault(fault, "--compare_baseline")
    assert "could not show the descent of the energy: OSError: [Errno 28] No space left on device" in output
    assert "could not show a sample: TypeError" in output
    assert re.search(r"--compare_baseline: Transformer\+\+, equal steps, ended with status \d+: no comparison", output)
    assert "the true token has the lower energy" in output and "train on" in output


def test_pictures_that_take_too_long_are_left_out(train_command: TrainCommand) -> None:
    slow = """
    import tasks.language, training.showing
    training.showing.FREE_SECONDS, training.showing.MOST_SHARE = 0.0, 0.0
    def show_step(self, showing):
        showing.save_picture("point", lambda file: file.write(b"PNG"))
    tasks.language.Language.show_step = show_step
    """
    output = train_command.with_fault(slow, "--val_check_interval", "2")
    assert output.count("pictures during training took 0 s so far: some are left out.") == 1
    drawn = sorted(file.name for file in (train_command.run_folder / "pictures").iterdir())
    assert drawn == ["point_step_0000000.png", "point_step_0000006.png"], "the last is drawn in any case"


@pytest.mark.parametrize("name", ["", "a/b", "..", "é", "-x"])
def test_a_picture_has_a_plain_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="the name of a picture is"):
        picture_path(tmp_path, name, 3)


def test_pictures_are_found_by_name_and_step(tmp_path: Path) -> None:
    for name in ("a_step_0000010", "a_step_0000002", "a_step_2_step_0000001", "b_step_12345678", "a_step_x", "c"):
        path = tmp_path / "pictures" / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    steps = {name: list(files) for name, files in pictures_by_step(tmp_path).items()}
    assert steps == {"a": [2, 10], "a_step_2": [1], "b": [12345678]}
    remove_pictures_after(tmp_path, 2)
    assert {name: list(files) for name, files in pictures_by_step(tmp_path).items()} == {"a": [2], "a_step_2": [1]}
    assert (tmp_path / "pictures" / "c.png").exists(), "a file that is no picture of a step is left alone"


def test_a_rehearsal_shows_nothing_and_compares_nothing(train_command: TrainCommand) -> None:
    output = train_command.ebt()("--fast_dev_run", "--compare_baseline")
    assert "--compare_baseline: no comparison: leave out --fast_dev_run, --debug_mode and" in output
    assert "energy by steps" not in output and "sample" not in output
    assert not list(train_command.run_folder.glob("*.png"))
