"""A task decides which flags there are and what is measured; it is found by its name, and costs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from config import RunConfig, SettingsError, parse_command_line
from config.record import differences, from_dict, identity, own_values, to_dict, to_words, values_of
from config.settings import Inference, Loops, Text
from config.task import (
    Measure,
    TaskFacts,
    all_tasks,
    derived,
    evaluation_line,
    find_task,
    measure_of,
    measures_of_record,
    task_record,
)
from config.task_flags import all_flags, all_names, task_flags
from config.twin import twin_config
from core.errors import UserError
from tests.config.problems import LANGUAGE_INFERENCE, problems

ROOT = Path(__file__).parents[2]
TOY = '''
from dataclasses import dataclass
from config.flags import flag
from config.task import Measure, TaskFacts

@dataclass(frozen=True)
class Points:
    """points in the plane"""

    num_modes: int = flag(3, "how many", low=1)
    spread_of_modes: float = flag(0.5, "how wide", above=0)

class Toy(TaskFacts):
    name, unit = "toy", "points"
    models = {"ebt": "energy"}
    groups = (Points,)
    defaults = {"max_steps": 7, "dataset_name": "plane"}
    checks = (lambda s: "--num_modes is 13: give another number." if s["num_modes"] == 13 else None,)

    def measures(self, values):
        return (Measure("rmse/*", "error of *", better="lower"), Measure("loss", "squared distance", better="lower"))

TASK = Toy()
'''


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A task that lies outside of the project."""
    folder = tmp_path / "mylab"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "toy.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mylab.toy"
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


def test_tasks_need_no_torch() -> None:
    code = (
        "import sys, config.task; config.task.all_tasks(); import config.settings; config.task_flags.all_flags(); "
        "print([name for name in ('torch', 'numpy', 'pytorch_lightning', 'lightning') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "[]\n"


def test_two_tasks_share_a_flag_only_by_sharing_its_group() -> None:
    owners: dict[str, set[type]] = {}
    for task in all_tasks().values():
        for group in (*task.groups, Inference):
            for setting in fields(group):
                owner = next(base for base in reversed(group.__mro__) if setting.name in base.__dict__)
                owners.setdefault(setting.name, set()).add(owner)
    assert {name: tasks for name, tasks in owners.items() if len(tasks) > 1} == {}


def test_every_task_has_its_facts() -> None:
    assert "language" in all_tasks()
    for name, task in all_tasks().items():
        values = values_of(parse_command_line(["--task", name]))
        assert task.name == name and task.unit and task.models
        assert task.measures(values)[0].better, "the headline has a direction"
        assert task.twin.keys() <= all_names().keys()
        assert all(flags.keys() <= task_flags(task).flags.keys() for flags in task.recipes.values())


@pytest.mark.parametrize("name", ["foo", "energy.x", "../language", "", "config.task", "os"])
def test_a_task_that_there_is_not_is_told(name: str) -> None:
    with pytest.raises(UserError) as caught:
        find_task(name)
    assert str(caught.value) == (
        f"--task is {name!r}: there is no such task; choose language, reasoning or a module with a dot in its "
        "name, which has a TASK."
    )
    if name:
        assert problems("--task", name) == [str(caught.value)]


def test_older_names_of_a_task() -> None:
    assert (
        parse_command_line(["--modality", "NLP"]) == parse_command_line([]) == parse_command_line(["--task=language"])
    )
    assert problems("--modality", "IMG", "--image_task", "denoising")[0].startswith(
        "--modality IMG with --image_task denoising names no task that there is: choose --task"
    )
    assert problems("--image_task", "denoising")[0].startswith("--modality IMG with --image_task denoising names no")
    assert problems("--modality", "TXT") == ["--modality is 'TXT': choose NLP, IMG or VID."]
    assert problems("--task", "language", "--modality", "IMG") == [
        "--modality is 'IMG', which is not --task language: remove one of them."
    ]


def test_the_flags_are_those_of_the_task(toy: str) -> None:
    config = parse_command_line(["--task", toy, "--num_modes", "5"])
    group = config.groups[0]
    assert (group.num_modes, config[type(group)]) == (5, group)
    assert (config.trainer.max_steps, config.data.dataset_name) == (7, "plane"), "its own defaults"
    assert not isinstance(config.data, Text) and (config.run.modality, config.run.recipe) == (None, None)
    assert config.run.task == toy, "the name that finds it again"
    assert parse_command_line(["--task", toy, "--max_steps", "9"]).trainer.max_steps == 9
    assert problems("--task", toy, "--mcmc_num_steps", "3", "--num_modes", "13", "--seed", "x") == [
        "--seed is 'x': give a whole number of at least 0.",
        "--mcmc_num_steps is a flag of language and reasoning: remove it, or choose --task.",
        "--num_modes is 13: give another number.",
    ]
    assert problems("--num_modes", "5")[0].startswith("--num_modes is unknown")
    assert problems("--task", toy, "--goal", "valid_perplexity<2") == [
        "--goal is 'valid_perplexity<2': a validation of --model_name ebt does not measure valid_perplexity; "
        "choose valid_rmse/1 or valid_loss."
    ]


def test_a_record_of_another_task_comes_back(toy: str, tmp_path: Path) -> None:
    config = parse_command_line(["--task", toy, "--num_modes", "5", "--spread_of_modes", "0.25"])
    record = json.loads(json.dumps(to_dict(config)))
    assert from_dict(record) == config and record["points"] == {"num_modes": 5, "spread_of_modes": 0.25}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(record))
    assert parse_command_line(["--config", str(file)]).groups == config.groups
    assert own_values(values_of(config)) == {"task": toy, "num_modes": 5, "spread_of_modes": 0.25}
    assert parse_command_line(to_words(own_values(values_of(config)))) == config
    assert identity(values_of(config)) != identity(values_of(config.with_values({"num_modes": 6})))
    lines = problems("--config", str(file), "--task", "language")
    assert any(line.startswith(f"points in {file} is unknown") for line in lines)


def test_help_has_the_flags_of_the_chosen_task(toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*argv: str) -> set[str]:
        with pytest.raises(SystemExit):
            parse_command_line(list(argv))
        return {line.split()[0][2:] for line in capsys.readouterr().out.splitlines() if line.startswith("  --")}

    own, language, every = listed("--task", toy, "--help"), listed("--help"), listed("--help", "all")
    assert "num_modes" in own and not own & {"mcmc_num_steps", "infer_temp", "tokenizer"}
    assert {"mcmc_num_steps", "tokenizer"} <= language and not language & {"num_modes", "infer_temp"}
    assert every == all_flags().keys() and "infer_temp" in every
    assert listed("--execution_mode", "inference", "--help") == LANGUAGE_INFERENCE.flags.keys()


def test_flags_of_inference_join_with_inference() -> None:
    assert problems("--infer_temp", "1", "--no-infer_echo") == [
        "--infer_temp belongs to python -m inference: remove it, or add --execution_mode inference.",
        "--no-infer_echo belongs to python -m inference: remove it, or add --execution_mode inference.",
    ]
    line = ["--execution_mode", "inference", "--only_test", "--only_test_model_ckpt", "a.ckpt", "--infer_temp", "0.5"]
    config = parse_command_line(line)
    assert config[Inference].infer_temp == 0.5 and from_dict(to_dict(config)) == config


def test_a_record_of_a_run_before_there_were_tasks_is_language() -> None:
    record = to_dict(parse_command_line([]))
    for name in ("task", "image_task"):
        del record["run"][name]
    record["inference"] = {setting.name: setting.default for setting in fields(Inference)}
    config = from_dict(record)
    assert config == parse_command_line([]) and config.run.task == "language"
    record["inference"]["infer_topk"] = 5
    with pytest.raises(SettingsError, match="infer_topk in the record belongs to python -m inference"):
        from_dict(record)


def test_measures_of_language_are_kept_with_the_run() -> None:
    task = find_task("language")
    record = json.loads(json.dumps(task_record(task, values_of(parse_command_line([])))))
    assert {name: record[name] for name in ("name", "unit", "headline", "models", "twin")} == {
        "name": "language",
        "unit": "tokens",
        "headline": "valid_loss",
        "models": {
            "ebt": "EBT",
            "baseline_transformer": "Transformer++",
            "looped_transformer": "looped Transformer++",
        },
        "twin": {"model_name": "baseline_transformer"},
    }
    assert record["measures"][0] == {
        "name": "loss",
        "title": "loss",
        "unit": "nats per token",
        "better": "lower",
        "split": True,
        "scale": 1.0,
        "instead": "bits_per_byte",
    }
    assert record["decides"]["unit"] == ["tokenizer"] and record["decides"]["row"] == ["context_length"]
    measures = measures_of_record(record)
    for column, title in {
        "valid_loss": "validation loss",
        "train_loss_step_12": "training loss after step 12",
        "test_top5": "test top-5 accuracy",
        "thinking_gain": "thinking gain in training",
        "valid_thinking_gain": "validation thinking gain",
        "valid_targets": "validation tokens evaluated",
    }.items():
        measure = measure_of(column, measures)
        assert measure is not None and (measure.name, measure.title) == (column, title)
    assert measure_of("gradient_norm", measures) is None
    plain = task.measures(values_of(parse_command_line(["--model_name", "baseline_transformer"])))
    assert measure_of("valid_loss_step_1", plain) is None and measure_of("step_size", plain) is None
    bits = next(measure for measure in plain if measure.name == "bits_per_byte")
    assert bits.derive is not None and bits.derive({"loss": 2.0}, {"tokens_per_byte": 0.25}) == pytest.approx(0.7213475)


def test_the_line_of_an_evaluation() -> None:
    measures = find_task("language").measures({"model_name": "ebt"})
    results = derived(measures, {"loss": 2.0, "perplexity": 7.4, "accuracy": 0.123}, {"tokens_per_byte": 0.25})
    assert list(results) == ["loss", "perplexity", "accuracy", "bits_per_byte"], "what is derived comes last"
    line = "loss 2.0000 nats, 0.7213 bits per byte, accuracy 12.3%"
    assert evaluation_line(measures, results) == line
    assert derived(measures, {"accuracy": 0.5}, {}) == {"accuracy": 0.5}, "nothing follows from that"
    plain = (Measure("loss", "distance", "m", "lower"), Measure("near", "near", "share of points", "higher"))
    assert evaluation_line(plain, {"loss": 1.5, "near": 0.25, "targets": 3}) == "distance 1.5000 m, near 25.0%"
    assert [measure.heading for measure in (*plain, *measures[:3])] == [
        *("distance, m", "near, share of points", "nats per token", "perplexity", "bits per byte"),
    ]


def test_the_twin_of_a_run() -> None:
    config = parse_command_line(["--recipe", "s1", "--max_steps", "9", "--run_name", "wide", "--seed", "4"])
    twin = twin_config(config, {"run_name": "wide-twin"})
    changed = {name: pair[1] for name, pair in differences(config, twin).items() if all_flags()[name].group != "energy"}
    assert changed == {"run_name": "wide-twin", "model_name": "baseline_transformer", "recipe": "residual"}


def test_a_dotted_task_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "brokenlab").mkdir()
    (tmp_path / "brokenlab" / "task.py").write_text("import nowhere_to_be_seen\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert problems("--task", "brokenlab.task") == [
        "--task is 'brokenlab.task': brokenlab.task cannot be imported: No module named 'nowhere_to_be_seen'."
    ]


def test_a_task_without_measures_says_so() -> None:
    with pytest.raises(NotImplementedError):
        TaskFacts().measures({})
    assert Measure("rmse/*", "error of *").named("rmse/depth").title == "error of depth"
    assert isinstance(RunConfig().groups, tuple)


def test_fewer_most_loops_than_fewest_are_refused_and_loops_belong_to_one_model() -> None:
    config = parse_command_line(["--model_name", "looped_transformer", "--loops_min", "3", "--loops_max", "3"])
    assert config[Loops].loops_min == config[Loops].loops_max == 3
    for line, message in (
        (
            "--model_name looped_transformer --loops_min 5",
            "--loops_min is 5, over --loops_max 4: give at most 4, or more --loops_max.",
        ),
        (
            "--model_name ebt --loops_max 5",
            "--loops_max is not used by --model_name ebt: remove it, or choose --model_name looped_transformer.",
        ),
    ):
        with pytest.raises(UserError) as caught:
            parse_command_line(line.split())
        assert str(caught.value) == message
