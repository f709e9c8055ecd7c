"""Health while a run trains: an alarm on each planted fault, none on a run that is well, and each raised once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.task import find_task
from core.files import read_rows
from training.health import (
    MOST_POINTS,
    MOST_VALIDATIONS,
    QUIET_CHECKS,
    RECENT,
    AlarmContext,
    Alarms,
    History,
    rules_of,
    turning_points,
)
from training.optimizers import schedule

# The default runs of an EBT and of its Transformer++, every 10 steps of 800.
EBT = """
    5.91 4.50 3.87 3.60 3.47 3.47 3.38 3.24 3.14 3.00 2.97 2.83 2.83 2.75 2.74 2.64 2.67 2.60 2.68 2.60 2.57 2.57
    2.57 2.57 2.51 2.47 2.46 2.38 2.41 2.36 2.32 2.38 2.40 2.32 2.30 2.30 2.32 2.27 2.31 2.29 2.29 2.30 2.21 2.18
    2.28 2.21 2.18 2.18 2.11 2.23 2.10 2.09 2.08 2.09 2.09 2.10 2.03 2.01 2.01 2.06 2.09 2.03 1.99 1.98 1.95 2.07
    1.97 1.94 1.93 1.94 1.96 1.96 1.97 1.89 2.00 1.97 1.93 1.97 1.91 1.92
"""
EBT_NORMS = """
    17.6 3.8 3.2 3.5 2.5 3.5 2.6 2.3 2.5 2.6 2.7 2.4 2.5 2.0 2.1 1.9 1.8 2.1 3.1 1.9 1.7 1.9 1.9 3.9 1.9 1.8 1.9 2.0
    2.1 1.8 1.7 2.0 1.5 1.8 1.6 1.5 1.4 1.6 2.0 1.6 1.7 1.6 1.7 1.8 1.5 1.7 1.5 1.6 1.5 2.3 1.6 1.6 1.6 1.6 1.7 1.6
    1.6 1.5 1.7 1.5 1.5 1.6 1.6 1.6 1.7 1.5 1.4 1.7 1.6 1.6 1.6 1.6 1.6 1.6 1.7 1.6 1.6 1.7 1.6 1.7
"""
TRANSFORMER = """
    5.33 4.09 3.42 3.03 2.90 2.87 2.76 2.62 2.61 2.46 2.49 2.39 2.41 2.33 2.31 2.24 2.28 2.18 2.25 2.20 2.16 2.16
    2.17 2.07 2.09 2.05 2.02 1.97 2.01 1.96 1.93 1.97 2.00 1.90 1.92 1.93 1.96 1.89 1.92 1.92 1.90 1.93 1.84 1.82
    1.93 1.88 1.84 1.82 1.79 1.88 1.76 1.77 1.75 1.78 1.77 1.75 1.72 1.71 1.72 1.76 1.79 1.73 1.70 1.67 1.68 1.78
    1.71 1.67 1.66 1.67 1.71 1.68 1.70 1.63 1.74 1.69 1.68 1.70 1.67 1.66
"""
UNIGRAM = 3.4
LANGUAGE = find_task("language")
ACCURACY = next(one for one in LANGUAGE.measures({"model_name": "ebt"}) if one.name == "accuracy")
FACTS = AlarmContext(
    warm_up_steps=80,
    floor=("unigram counts", UNIGRAM),
    scale=1.0,
    unit="nats per token",
    higher=ACCURACY,
    alarms=LANGUAGE.alarms,
)
RATE = schedule(
    SimpleNamespace(  # type: ignore[arg-type]
        warm_up_base_lr_divider=100,
        min_lr_scale=10,
        max_scheduling_steps=None,
        warm_up_steps=80,
        lr_schedule="cosine",
    ),
    8000,
)


def row(step: int, loss: float, norm: float = 1.6, rate: float | None = None) -> dict[str, Any]:
    learning = RATE(step) if rate is None else rate
    return {
        **{"step": step, "train_loss": loss, "gradient_norm": norm, "clipped_share": float(norm > 1)},
        "learning_rate": learning,
    }


def validation(step: int, loss: float, accuracy: float = 0.5, spread: float = 0.4) -> dict[str, Any]:
    return {"step": step, "valid_loss": loss, "valid_accuracy": accuracy, "valid_spread": spread}


def watch(tmp_path: Path, facts: AlarmContext = FACTS) -> tuple[Alarms, list[str]]:
    """A watch over a run, and what it says."""
    messages: list[str] = []
    recorder: Any = SimpleNamespace(readers=[])
    guard: Any = SimpleNamespace(events=[])
    return Alarms(tmp_path, recorder, facts, guard, messages.append), messages


def alarms(rows: list[dict[str, Any]], tmp_path: Path, facts: AlarmContext = FACTS) -> dict[str, int]:
    """The kinds of alarms that were raised, and the step of the first of each."""
    health, messages = watch(tmp_path / str(len(list(tmp_path.iterdir()))), facts)
    health.path.parent.mkdir()
    for one in rows:
        health.read(one)
    alarms = read_rows(health.path)
    assert len(messages) == len(alarms)
    assert all(alarm.keys() == {"step", "time", "kind", "text", "advice"} for alarm in alarms)
    return {alarm["kind"]: alarm["step"] for alarm in reversed(alarms)}


def healthy(seed: int, steps: int = 8000, noise: float = 0.035, every: int = 10) -> list[dict[str, Any]]:
    """A run as they go: a falling power of the step, noise, and validations that follow."""
    draw = np.random.default_rng(seed)
    rows = []
    for step in range(every, steps + 1, every):
        loss = 1.2 + 5 * (1 + step / 15) ** -0.45
        rows.append(row(step, loss + draw.normal(0, noise)))
        if step % 500 == 0:
            rows.append(validation(step, loss + 0.02 + draw.normal(0, 0.004), 0.7 - loss / 10))
    return rows


@pytest.mark.parametrize("losses", [EBT, TRANSFORMER])
def test_the_default_run_is_well(losses: str, tmp_path: Path) -> None:
    rows = [
        row(10 * number, loss, norm, schedule_of_800(10 * number))
        for number, (loss, norm) in enumerate(zip(numbers(losses), numbers(EBT_NORMS), strict=True), 1)
    ]
    rows.insert(0, validation(0, 6.28, 0.005, 0.1))
    rows.insert(63, validation(625, 2.04, 0.46))
    rows.append(validation(800, 1.94, 0.49))
    assert alarms(rows, tmp_path) == {}


def numbers(text: str) -> list[float]:
    return [float(word) for word in text.split()]


def schedule_of_800(step: int) -> float:
    return min(1.0, step / 80) * (0.55 + 0.45 * math.cos(math.pi * step / 800))


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.035, 0.1, 0.3]))
def test_a_run_that_learns_is_well(seed: int, noise: float) -> None:
    health, messages = watch(Path("nowhere"))
    for one in healthy(seed, noise=noise):
        health.read(one)
    assert messages == []


def changed(change: Callable[[dict[str, Any]], dict[str, Any]], seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [{**one, **change(one)} for one in healthy(seed, **more)]


def overconfident(one: dict[str, Any]) -> dict[str, Any]:
    return {"valid_loss": 1.6 + one["step"] / 20_000} if "valid_loss" in one and one["step"] > 2000 else {}


def overfitted(one: dict[str, Any]) -> dict[str, Any]:
    if one["step"] <= 3000:
        return {}
    past = (one["step"] - 3000) / 5000
    if "valid_loss" in one:
        return {"valid_loss": 1.75 + 0.2 * past, "valid_accuracy": 0.5}
    return {"train_loss": one["train_loss"] - 0.8 * past}


def flat(one: dict[str, Any]) -> dict[str, Any]:
    return {name: 2.0 + one[name] / 100 for name in ("train_loss", "valid_loss") if name in one and one["step"] > 500}


def swinging(one: dict[str, Any]) -> dict[str, Any]:
    swing = 0.3 * math.sin(one["step"] / 25) if one["step"] > 1000 else 0.0
    return {"train_loss": one["train_loss"] + swing} if "train_loss" in one else {}


def rising(one: dict[str, Any]) -> dict[str, Any]:
    past = max(0, one["step"] - 1000)
    return {"train_loss": one["train_loss"] + past / 1000} if "train_loss" in one else {}


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "overconfidence": (overconfident, "more answers are right, and the wrong ones are too sure"),
    "overfitting": (overfitted, "the model memorises its training data"),
    "plateau": (flat, "the training loss is 2.0"),
    "oscillation": (swinging, "the training loss swings between about"),
    "divergence": (rising, "the training loss has risen from"),
    "clipping": (lambda one: {"gradient_norm": 30.0}, "its norm is 30 where 1 is allowed"),
    "constant predictions": (lambda one: {"valid_spread": 0.001}, "predictions hardly depend on the context"),
    "unlearned": (
        lambda one: {name: UNIGRAM + one[name] / 100 for name in ("train_loss", "valid_loss") if name in one},
        "nats per token, and that of the reference 'unigram counts' is 3.400: the model has not learned yet",
    ),
}


def test_every_kind_has_its_fault() -> None:
    assert FAULTS.keys() | {"not shuffled"} == rules_of(FACTS).keys()


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_told(kind: str, tmp_path: Path) -> None:
    change, words = FAULTS[kind]
    for seed in range(2):
        assert kind in alarms(changed(change, seed), tmp_path)
    texts = [alarm["text"] for file in tmp_path.glob("*/alarms.jsonl") for alarm in read_rows(file)]
    assert any(words in text for text in texts), texts


@pytest.mark.parametrize("kind", ["plateau", "oscillation", "clipping", "constant predictions"])
def test_a_fault_is_not_taken_for_another(kind: str, tmp_path: Path) -> None:
    assert alarms(changed(FAULTS[kind][0]), tmp_path).keys() == {kind}


def test_clipping_most_steps_hard_is_told(tmp_path: Path) -> None:
    def most(one: dict[str, Any]) -> dict[str, float]:
        return {"gradient_norm": 30.0, "clipped_share": 0.6}

    assert alarms(changed(most), tmp_path).keys() == {"clipping"}


def test_clipping_a_little_is_no_trouble(tmp_path: Path) -> None:
    assert alarms(changed(lambda one: {"gradient_norm": 3.0}), tmp_path) == {}
    assert alarms(changed(lambda one: {"gradient_norm": 30.0}), tmp_path, replace(FACTS, clip=0.0)) == {}


@pytest.mark.parametrize("name", ["learning_rate", "learning_rate/decay"])
def test_a_low_learning_rate_explains_a_plateau(tmp_path: Path, name: str) -> None:
    rows = changed(flat)
    for one in rows:
        one.pop("learning_rate", None)
        one[name] = 1.0 if one["step"] < 600 else 0.3
    assert "plateau" not in alarms(rows, tmp_path)


def test_a_trouble_is_told_again_only_if_it_went_away(tmp_path: Path) -> None:
    health, messages = watch(tmp_path)
    for text in ["bad", "bad", *[None] * (QUIET_CHECKS - 1), "bad", *[None] * QUIET_CHECKS, "bad", "bad"]:
        health.update(7, "plateau", text, "wait")
    assert messages == ["alarm, step 7: plateau: bad.\n  Usual remedies: wait."] * 2
    assert [alarm["kind"] for alarm in read_rows(tmp_path / "alarms.jsonl")] == ["plateau", "plateau"]


def test_what_the_divergence_guard_saw_is_written_down_once(tmp_path: Path) -> None:
    health, messages = watch(tmp_path)
    health.guard.events.append({"step": 31, "what": "the loss is 9, 700 deviations over its mean"})
    health.check_all(32)
    health.check_all(33)
    (alarm,) = read_rows(tmp_path / "alarms.jsonl")
    assert (alarm["step"], alarm["kind"]) == (31, "divergence") and messages == [], "the guard has said it itself"


def test_a_full_disk_costs_the_note_and_not_the_run(tmp_path: Path) -> None:
    health, messages = watch(tmp_path / "nowhere")  # a folder that cannot be written
    for one in changed(FAULTS["clipping"][0], steps=500):
        health.read(one)
    assert len(messages) == 1 and messages[0].startswith("alarm, step 300: clipping: the gradient is clipped at 100%")


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 800), st.integers(0, 2**32))
def test_a_resumed_watch_goes_on_as_if_never_stopped(cut: int, seed: int) -> None:
    rows = changed(swinging, seed)
    whole, messages = watch(Path("nowhere"))
    first, first_messages = watch(Path("nowhere"))
    second, second_messages = watch(Path("nowhere"))
    for one in rows:
        whole.read(one)
    for one in rows[:cut]:
        first.read(one)
    second.load_state_dict(first.state_dict())
    for one in rows[cut:]:
        second.read(one)
    assert first_messages + second_messages == messages and second.state_dict() == whole.state_dict()


def test_a_month_of_rows_takes_bounded_memory() -> None:
    history = History()
    for step in range(1, 3_001):
        history.add({**row(step, 2.0), **validation(step, 2.0)}, 80)
    assert len(history.coarse) < MOST_POINTS and len(history.recent) == RECENT
    assert len(history.validations) <= MOST_VALIDATIONS and history.validations[0].step == 1
    steps = np.diff([point.step for point in history.coarse])
    assert set(steps.tolist()) == {history.stride}, "evenly spaced over the whole run"


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=60), st.floats(0.01, 10))
def test_a_curve_turns_as_often_from_either_end(values: list[float], swing: float) -> None:
    turns, low, high = turning_points(values, swing)
    assert 0 <= turns < len(values) and low <= high
    if max(values) - min(values) < swing:
        assert turns == 0


def test_reading_in_order_by_the_settings_raises_an_alarm(tmp_path: Path) -> None:
    health, messages = watch(tmp_path, replace(FACTS, in_order=True))
    health.read(validation(0, 6.0))
    assert messages[0].startswith("alarm, step 0: not shuffled: the settings have the training rows read in order.")
    health, messages = watch(tmp_path)
    health.read(validation(0, 6.0))
    assert messages == []


def small(one: dict[str, Any]) -> dict[str, Any]:
    """The same run of a task whose loss is a thousandth as large."""
    return {name: value / 1000 if name.endswith("_loss") else value for name, value in one.items()}


def test_without_a_scale_the_first_loss_is_one(tmp_path: Path) -> None:
    facts = replace(FACTS, scale=None, floor=("a mean", UNIGRAM / 1000))
    assert alarms([small(one) for one in healthy(0)], tmp_path, facts) == {}
    for kind in ("overfitting", "unlearned"):
        assert kind in alarms([small(one) for one in changed(FAULTS[kind][0])], tmp_path, facts)


def test_a_task_without_other_measures_has_the_rules_of_its_loss(tmp_path: Path) -> None:
    facts = AlarmContext(warm_up_steps=80)
    assert alarms(changed(FAULTS["overconfidence"][0]), tmp_path, facts).keys() <= {"overfitting", "divergence"}
    assert "overfitting" in alarms(changed(overfitted), tmp_path, facts)


def test_an_old_state_has_its_measures_where_they_are_read() -> None:
    state = History(FACTS.names).state() | {"validations": [(50, 2.0, 0.4, 0.01, 1.9)]}
    history = History.of(state, FACTS.names)
    (one,) = history.validations
    assert (history.value(one, "accuracy"), history.value(one, "spread"), one.train) == (0.4, 0.01, 1.9)
    assert history.state() == state
