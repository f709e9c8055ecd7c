"""What is wrong with a run, told from its history: pure functions that give a sentence, or None where all is well.

Each threshold is far from what the default run shows, since an alarm that cries without need is soon not heard.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from training.history import SMOOTH, History


@dataclass(frozen=True)
class Facts:
    """What does not change in a run. unigram: loss of guessing by how often tokens occur. clip: 0 for no clipping."""

    warm_up_steps: int = 0
    clip: float = 1.0
    unigram: float = math.nan


def noise_of(values: Sequence[float]) -> float:
    """Standard deviation of what changes from one value to the next, so that a trend does not count."""
    return float(np.std(np.diff(values))) / math.sqrt(2) if len(values) > 2 else 0.0


def overconfident(history: History, facts: Facts) -> str | None:
    """Loss rising while accuracy rises."""
    seen = history.validations
    if len(seen) < 4:
        return None
    best, last = min(seen, key=lambda one: one.loss), seen[-1]
    rising = seen[-3].loss < seen[-2].loss < last.loss and last.loss > 1.01 * best.loss
    if not rising or not last.accuracy > best.accuracy + 0.001:
        return None
    return (
        f"the validation loss rose from {best.loss:.3f} at step {best.step} to {last.loss:.3f}, while accuracy rose "
        f"from {best.accuracy:.1%} to {last.accuracy:.1%}: more answers are right, and the wrong ones are too sure"
    )


def gap_grows(history: History, facts: Facts) -> str | None:
    """The training loss goes on falling, and that of validation does not follow."""
    seen = history.validations[-4:]
    if len(seen) < 4:
        return None
    gaps = [one.loss - one.train for one in seen]
    first, last = seen[0], seen[-1]
    grew = gaps[0] < gaps[1] < gaps[2] < gaps[3] and gaps[3] - gaps[0] > max(0.05, 0.03 * last.loss)
    if not grew or last.train >= first.train or last.loss < 0.998 * seen[1].loss:
        return None
    return (
        f"since step {first.step} the training loss fell from {first.train:.3f} to {last.train:.3f}, and that of "
        f"validation went from {first.loss:.3f} to {last.loss:.3f}: the model learns its training text by heart"
    )


def plateau(history: History, facts: Facts) -> str | None:
    """Half of the run brought less than a hundredth, though the learning rate is still high."""
    points = history.whole
    if not points:
        return None
    begin = max(facts.warm_up_steps, points[-1].step // 2)
    window = [point for point in points if point.step >= begin]
    peak = max(point.rate for point in points)
    if len(window) < 50 or min(point.rate for point in window) < 0.5 * peak:
        return None
    third = len(window) // 3
    losses = [point.loss for point in window]
    before, now = float(np.mean(losses[:third])), float(np.mean(losses[-third:]))
    error = noise_of(losses) * math.sqrt(2 / third)
    gained = before - now
    if gained + 2 * error > 0.01 * now or gained < -0.05 * now:
        return None
    return f"the training loss is {now:.3f}, as it was {before:.3f} about step {window[third // 2].step}"


def oscillates(history: History, facts: Facts) -> str | None:
    """The loss goes up and down, far more than from batch to batch."""
    window = history.since(facts.warm_up_steps)[-64:]
    if len(window) < 32:
        return None
    losses = np.array([point.loss for point in window[-(len(window) // 2) * 2 :]])
    pairs = losses.reshape(-1, 2)
    noise = float(np.std(pairs[:, 1] - pairs[:, 0])) / math.sqrt(2)
    swing = max(0.05 * float(losses.mean()), 5 * noise)
    turns, low, high = turning_points(pairs.mean(axis=1).tolist(), swing)
    if turns < 4:
        return None
    return (
        f"the training loss swings between about {low:.3f} and {high:.3f}, {turns} times since step {window[0].step}, "
        "which is more than its noise"
    )


def turning_points(values: Sequence[float], swing: float) -> tuple[int, float, float]:
    """How often a curve turns by at least `swing`; the mean of its lows and of its highs."""
    ends: list[float] = []
    direction, extreme = 0, values[0]
    for value in values[1:]:
        if (direction >= 0 and value > extreme) or (direction <= 0 and value < extreme):
            direction = direction or (1 if value > extreme else -1)
            extreme = value
        elif abs(value - extreme) >= swing:
            ends.append(extreme)
            direction, extreme = (1 if value > extreme else -1), value
    ends.append(extreme)
    middle = (min(ends) + max(ends)) / 2
    lows, highs = [end for end in ends if end <= middle], [end for end in ends if end > middle]
    return len(ends) - 1, float(np.mean(lows or ends)), float(np.mean(highs or ends))


def diverges(history: History, facts: Facts) -> str | None:
    """The loss rises for good, too slowly for the divergence guard, which judges single batches."""
    losses = [point.loss for point in history.since(facts.warm_up_steps)]
    if len(losses) < 3 * SMOOTH or not math.isfinite(history.lowest[0]):
        return None
    lowest, step = history.lowest
    level = min(np.reshape(losses[-3 * SMOOTH :], (3, SMOOTH)).mean(axis=1))  # where it swings, it comes back
    if level < 1.1 * lowest or level - lowest < 6 * noise_of(losses) / math.sqrt(SMOOTH):
        return None
    return f"the training loss has risen from {lowest:.3f} at step {step} to {level:.3f}"


def clips(history: History, facts: Facts) -> str | None:
    """Most steps have their gradient cut to a small part of its length."""
    window = history.since(facts.warm_up_steps)[-50:]
    if not facts.clip or len(window) < 20:
        return None
    share, norm = float(np.mean([point.clipped for point in window])), float(np.median([p.norm for p in window]))
    if share <= 0.5 or norm < 5 * facts.clip:
        return None
    return (
        f"the gradient is clipped at {share:.0%} of the steps since step {window[0].step}, and its norm is "
        f"{norm:.3g} where {facts.clip:g} is allowed: the length of a step no longer tells anything"
    )


def constant(history: History, facts: Facts) -> str | None:
    """The prediction is the same wherever it is made."""
    seen = [one for one in history.validations if one.step >= max(50, facts.warm_up_steps)]
    if not seen or not seen[-1].spread < 0.02:
        return None
    return (
        f"predictions hardly depend on the context: over positions their standard deviation is {seen[-1].spread:.4f} "
        "(of a probability; a model that reads has more than 0.1)"
    )


def unlearned(history: History, facts: Facts) -> str | None:
    """No better than guessing by how often each token occurs."""
    begin = max(200, 2 * facts.warm_up_steps)
    if not history.recent or history.recent[-1].step < begin or len(history.recent) < SMOOTH:
        return None
    loss = float(np.mean([point.best_loss for point in list(history.recent)[-SMOOTH:]]))
    if history.validations and history.validations[-1].step >= begin:
        loss = min(loss, history.validations[-1].loss)
    if not loss > facts.unigram - 0.01:
        return None
    return f"the loss is {loss:.3f}, and guessing by how often tokens occur gives {facts.unigram:.3f}"


class Kind(NamedTuple):
    """A kind of trouble: how it is found and what people usually do."""

    find: Callable[[History, Facts], str | None]
    advice: str


KINDS = {
    "overconfidence": Kind(
        overconfident,
        "keep the checkpoint of the best loss (--early_stop 3 ends there), raise --weight_decay, or bring more data; "
        "where only accuracy counts, --checkpoint_monitor_string valid_accuracy --checkpoint_monitor_mode max",
    ),
    "overfitting": Kind(
        gap_grows, "more data, --early_stop 3, a smaller --model_size, more --weight_decay, or fewer --max_epochs"
    ),
    "plateau": Kind(
        plateau,
        "lower the learning rate (a schedule that ends earlier: --max_scheduling_steps), or try a larger --model_size; "
        "--find_lr shows which rates move the loss",
    ),
    "oscillation": Kind(
        oscillates, "a third of the --peak_learning_rate, larger batches (--accumulate_grad_batches), more warm-up"
    ),
    "divergence": Kind(
        diverges,
        "a third of the --peak_learning_rate, more --warm_up_steps, --gradient_clip_val 1, --mcmc_step_size auto; "
        "--divergence_guard rollback goes back by itself",
    ),
    "clipping": Kind(
        clips,
        "look where the gradient comes from (--log_gradients), lower --mcmc_step_size or "
        "--weight_initialization_gain, or allow more with --gradient_clip_val",
    ),
    "constant predictions": Kind(
        constant,
        "check that inputs reach the model (--debug_dataloader, --debug_unused_parameters), raise --mcmc_step_size, or "
        "lower the learning rate: --overfit_batches 1 tells whether it can learn at all",
    ),
    "unlearned": Kind(
        unlearned,
        "check that texts are whole (--debug_dataloader) and that a few batches can be learnt (--overfit_batches 1); "
        "--find_lr finds a rate",
    ),
}
ORDER_ADVICE = "leave out --no_shuffle, or shuffle the files: in order, a model follows what it read last"
