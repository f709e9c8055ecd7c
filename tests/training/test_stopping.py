"""Ending a run early: --goal and --early_stop, what they say, and the exit status."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from config import parse_command_line
from config.task import Goal
from tests.config.problems import problems
from training.stopping import GOAL_UNMET, EarlyStop

values = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.sampled_from(["valid_loss", "valid_accuracy", "valid_loss_step_1"]),
    st.sampled_from(["<", "<=", ">", ">="]),
    values,
    st.sampled_from(["", " ", "  "]),
)
def test_a_goal_is_read_as_it_is_written(metric: str, sign: str, value: float, space: str) -> None:
    goal = Goal.parse(f"{space}{metric}{space}{sign}{space}{value!r}{space}")
    assert (goal.metric, goal.sign, goal.value) == (metric, sign, value)


@given(st.text(max_size=30))
def test_any_other_text_is_refused_in_words(text: str) -> None:
    try:
        Goal.parse(text)
    except ValueError as error:
        assert "valid_loss" in str(error)


@given(values, values)
def test_a_goal_is_met_as_the_sign_says(limit: float, value: float) -> None:
    met = {sign: Goal("valid_loss", sign, limit).is_met(value) for sign in ("<", "<=", ">", ">=")}
    assert met == {"<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit}


def test_goals_that_cannot_be_met_are_refused() -> None:
    first_choices = "valid_loss, valid_perplexity, valid_bits_per_byte, valid_accuracy, valid_top5"
    energy = "valid_thinking_gain"
    assert problems("--goal", "loss<1") == [
        "--goal is 'loss<1': a validation of --model_name ebt does not measure loss; "
        f"choose {first_choices}, valid_spread, {energy} or valid_loss_step_1."
    ]
    assert problems("--distributed_strategy", "fsdp") == [
        "--distributed_strategy is 'fsdp': sharded training is not built yet (the step size has no dimension to shard, "
        "and clipping would see a part of the gradient); choose ddp."
    ]
    assert problems("--distributed_strategy", "dpp") == ["--distributed_strategy is 'dpp': choose auto or ddp."]
    assert problems("--goal", "valid_loss=1") == [
        "--goal is 'valid_loss=1': write a metric, one of < <= > >= and a number, in quotes: 'valid_loss<1.4'."
    ]
    assert problems("--goal", "valid_loss_step_3<2") == [
        "--goal is 'valid_loss_step_3<2': a validation of --model_name ebt does not measure valid_loss_step_3; "
        f"choose {first_choices}, valid_spread, {energy} or valid_loss_step_1."
    ]
    baseline = ("--model_name", "baseline_transformer")
    assert problems(*baseline, "--checkpoint_monitor_string", "valid_los") == [
        "--checkpoint_monitor_string is 'valid_los': a validation of --model_name baseline_transformer does not "
        f"measure valid_los; choose {first_choices} or valid_spread."
    ]
    assert problems("--checkpoint_monitor_string", "valid_accuracy") == [
        "--checkpoint_monitor_string is 'valid_accuracy', which is better when larger: add "
        "--checkpoint_monitor_mode max."
    ]
    assert parse_command_line(["--goal", "valid_loss_step_0<2"]).trainer.goal, "its walk starts from a prediction"
    assert problems("--recipe", "laptop", "--goal", "valid_loss_step_0<2")
    assert problems("--early_stop", "2", "--limit_val_batches", "0") == [
        "--early_stop has no effect with --limit_val_batches 0: remove one of them."
    ]
    assert problems("--goal", "valid_loss<1", "--only_test", "--only_test_model_ckpt", "last") == [
        "--goal has no effect with --only_test: remove one of them."
    ]


def ending(*flags: str) -> tuple[EarlyStop, Any, list[str]]:
    """The judge of a run's validations, the run at step 0, and the messages printed."""
    messages: list[str] = []
    judge = EarlyStop(parse_command_line(list(flags)), SimpleNamespace(), messages.append)  # type: ignore[arg-type]
    return judge, SimpleNamespace(global_step=0, should_stop=False), messages


def feed(judge: EarlyStop, run: Any, losses: list[float]) -> None:
    for loss in losses:
        run.global_step += 10
        judge.check(run, {"valid_loss": loss, "valid_accuracy": 1 / loss})
        if run.should_stop:
            return


def test_a_goal_that_is_met_ends_the_run() -> None:
    judge, run, messages = ending("--goal", "valid_loss<1.4")
    feed(judge, run, [2.0, 1.4, 1.39, 1.0])
    assert messages == ["--goal valid_loss<1.4 is met at step 30: it is 1.3900."] and run.global_step == 30
    assert judge.verdict() == (0, "--goal valid_loss<1.4 was met at step 30.")
    assert judge.cause == "finished: goal met"


def test_a_goal_that_is_not_met_says_how_near_it_came() -> None:
    judge, run, messages = ending("--goal", "valid_accuracy>=0.9")
    feed(judge, run, [2.0, 1.25, 1.6])
    assert not run.should_stop and not messages and judge.cause == "finished"
    assert judge.verdict() == (
        GOAL_UNMET,
        "--goal valid_accuracy>=0.9 was not met: the nearest was 0.8000 at step 20.",
    )
    assert ending("--goal", "valid_loss<1")[0].verdict()[1].endswith("was not met: it was never measured.")
    assert ending()[0].verdict() == (0, "")


def test_early_stop_waits_for_so_many_validations() -> None:
    judge, run, messages = ending("--early_stop", "2")
    feed(judge, run, [2.0, 2.1, 1.9, 1.9, 1.95, 1.0])
    assert run.global_step == 50 and judge.cause == "finished: no longer getting better"
    assert messages == [
        "--early_stop 2: valid_loss did not get better than 1.9000 for 2 validations; the run ends at step 50."
    ]
    judge, run, messages = ending(
        *("--early_stop", "1", "--checkpoint_monitor_string", "valid_accuracy", "--checkpoint_monitor_mode", "max")
    )
    feed(judge, run, [2.0, 1.5, 1.6])
    assert run.global_step == 30 and "for 1 validation;" in messages[0]


@given(st.lists(st.sampled_from([1.0, 1.5, 2.0, 2.5]), max_size=12), st.integers(0, 12))
def test_a_resumed_run_ends_where_the_whole_one_does(losses: list[float], cut: int) -> None:
    flags = ("--early_stop", "3", "--goal", "valid_loss<1")
    whole, run, _ = ending(*flags)
    feed(whole, run, losses)
    first, pieces, _ = ending(*flags)
    feed(first, pieces, losses[:cut])
    if not pieces.should_stop:
        second, _, _ = ending(*flags)
        second.load_state_dict(first.state_dict())
        feed(second, pieces, losses[cut:])
        assert second.state_dict() == whole.state_dict()
    assert pieces.global_step == run.global_step


def test_another_goal_begins_anew() -> None:
    first, run, _ = ending("--goal", "valid_loss<1.4", "--early_stop", "3")
    feed(first, run, [1.5, 1.3])
    second, _, _ = ending("--goal", "valid_loss<1.2", "--early_stop", "3")
    second.load_state_dict(first.state_dict())
    assert second.met_at is None and second.nearest is None and second.best == 1.3
