"""Energy-based models: their flags, tried sets of these flags, what is checked of them, and what is measured.

Tasks whose models walk down an energy have the group Walk, or one that extends it, ENERGY_CHECKS and
`energy_measures`. Energy is that of language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from core.text import format_value

from .checks import ResolvedFlags, Rule, rule, unmeasured, watched_metrics
from .flags import flag
from .settings import EBT
from .task import Measure

SCALAR = {**EBT, "energy_form": ("scalar",)}


@dataclass(frozen=True)
class Walk:
    """how an energy-based model finds its predictions"""

    section: ClassVar[str] = "energy"

    mcmc_num_steps: int = flag(
        1, "landscapes, N: steps down the energy where none is repeated", low=1, needs=EBT, shown_first=2
    )
    mcmc_step_size: float | str = flag(
        "auto",
        "length of a step; a number means --recipe public",
        above=0,
        words=("auto",),
        needs=EBT,
        shown_first=2,
    )
    mcmc_step_size_learnable: bool = flag(True, "learn the step size", needs=EBT)
    mcmc_step_size_lr_multiplier: float | None = flag(
        None,
        "learning rate of the step size as a multiple; default: the step size",
        above=0,
        needs={**EBT, "mcmc_step_size_learnable": (True,)},
    )
    randomize_mcmc_step_size_scale: float = flag(
        1.0,
        "in training, draw a walk's step size from [size / this, size * this]",
        low=1,
        needs=EBT,
    )
    randomize_mcmc_num_steps: int = flag(
        0, "in training, repeat each landscape up to so many times more, drawn per batch", low=0, needs=EBT
    )
    randomize_mcmc_num_steps_min: int = flag(0, "fewest repeats drawn; 0 means 1", low=0, needs=EBT)
    randomize_mcmc_num_steps_final_landscape: bool = flag(False, "repeat the last landscape only", needs=EBT)
    denoising_initial_condition: str = flag(
        "random_noise", "where a walk begins", choices=("random_noise", "zeros"), needs=EBT
    )
    gaussian_random_noise_scaling: float = flag(
        1.0,
        "standard deviation of the noise a walk begins with",
        low=0,
        needs={**EBT, "denoising_initial_condition": ("random_noise",)},
    )
    langevin_dynamics_noise: float = flag(0.0, "Langevin noise, added before each step", low=0, needs=EBT)
    langevin_dynamics_noise_learnable: bool = flag(False, "learn the Langevin noise", needs=EBT)
    no_langevin_during_eval: bool = flag(False, "no Langevin noise in evaluation", needs=EBT)
    no_mcmc_detach: bool = flag(True, "let gradients pass from a step to the one before", needs=EBT, shown_first=2)
    truncate_mcmc: bool = flag(
        False,
        "loss of the last step, earlier gradients are constants",
        needs=EBT,
        shown_first=2,
    )
    mcmc_last_step_loss: bool = flag(False, "loss of the last step, differentiated through all", needs=EBT)
    mcmc_replay_buffer: bool = flag(False, "append rows that start from earlier predictions to a batch", needs=EBT)
    mcmc_replay_buffer_size: int = flag(
        192, "rows the replay buffer holds", low=1, needs={**EBT, "mcmc_replay_buffer": (True,)}
    )
    mcmc_replay_buffer_sample_bs_percent: float = flag(
        0.5,
        "rows appended from the replay buffer, as a share of a batch",
        above=0,
        high=1,
        needs={**EBT, "mcmc_replay_buffer": (True,)},
    )
    contrastive_loss: bool = flag(False, "also push the truth's energy below that before the last step", needs=EBT)
    contrastive_loss_coeff: float = flag(
        0.1, "weight of the contrastive loss", above=0, needs={**EBT, "contrastive_loss": (True,)}
    )
    reconstruction_coeff: float = flag(
        1.0,
        "weight of the task's loss beside the contrastive loss",
        low=0,
        needs={**EBT, "contrastive_loss": (True,)},
    )


@dataclass(frozen=True)
class EnergyForm:
    """what the energy is"""

    energy_form: str = flag(
        "residual",
        "as published, or a correction of a Transformer++",
        choices=("scalar", "residual"),
        needs=EBT,
        of_shape=True,
    )
    energy_blocks: int = flag(
        1,
        "blocks that only a residual energy has, after the others",
        low=1,
        needs={**EBT, "energy_form": ("residual",)},
        of_shape=True,
    )
    ebt_type: str = flag(
        "default",
        "whether and how the energy knows the step",
        choices=("default", "time_embed", "adaln", "adaln_zero"),
        needs=EBT,
        shown_first=1,
    )


@dataclass(frozen=True)
class Energy(Walk, EnergyForm):  # the fields of the last base come first
    __doc__ = Walk.__doc__

    denoising_initial_condition: str = flag(
        "prior",
        "where a walk begins; prior: at the Transformer++",
        choices=("random_noise", "zeros", "most_recent_embedding", "prior"),
        needs=EBT,
    )
    gaussian_random_noise_scaling: float = flag(
        0.0,
        "standard deviation of the noise a walk begins with",
        low=0,
        needs={**EBT, "denoising_initial_condition": ("random_noise", "prior")},
    )
    normalize_initial_condition: bool = flag(True, "the energy sees softmax(y), not y", needs=SCALAR)
    vocab_to_embed_uses_prob_dist: bool = flag(False, "embed predictions with the tokens' own embedding", needs=SCALAR)
    update_from: str = flag(
        "logits",
        "a step starts from y, or from what the energy sees: softmax(y)",
        choices=("logits", "probabilities"),
        needs=SCALAR,
    )
    ebt_norm: str = flag("rms", "normalisation", choices=("rms", "layer", "none", "dyt"), needs=EBT)
    ebt_act_func: str = flag("silu", "activation of the gate", choices=("silu", "gelu", "relu", "elu"), needs=EBT)


# What public EBT code has where a flag is not given, so that its job scripts mean here what they mean there.
PUBLIC: dict[str, Any] = {
    "energy_form": "scalar",
    "ebt_type": "default",
    "mcmc_num_steps": 2,
    "mcmc_step_size_learnable": False,
    "mcmc_step_size_lr_multiplier": 5000.0,
    "randomize_mcmc_step_size_scale": 1.0,
    "randomize_mcmc_num_steps": 0,
    "randomize_mcmc_num_steps_min": 0,
    "denoising_initial_condition": "random_noise",
    "gaussian_random_noise_scaling": 1.0,
    "normalize_initial_condition": False,
    "update_from": "probabilities",
    "langevin_dynamics_noise": 0.0,
    "no_mcmc_detach": False,
    "truncate_mcmc": False,
    "mcmc_replay_buffer": False,
    "contrastive_loss_coeff": 0.0005,
}

RECIPES: dict[str, dict[str, Any]] = {
    # A Transformer++ that is corrected by what its prediction adds to the energy (docs/energy.md, docs/log.md).
    "residual": {},
    # The published form of the energy, so that it trains smoothly at the size of a laptop.
    "laptop": {
        "energy_form": "scalar",
        "mcmc_num_steps": 2,
        "randomize_mcmc_step_size_scale": 2.0,
        "denoising_initial_condition": "random_noise",
        "gaussian_random_noise_scaling": 0.1,
        "mcmc_last_step_loss": True,
    },
    "public": PUBLIC,
    # The paper's System 1: two long steps, each judged, no gradient between them.
    "s1": PUBLIC
    | {
        "ebt_type": "time_embed",
        "mcmc_step_size": 500.0,
        "mcmc_step_size_learnable": True,
        "mcmc_step_size_lr_multiplier": 1500.0,
        "normalize_initial_condition": True,
    },
    # The paper's System 2: two or three noisy steps of random length, of which only the last is differentiated.
    # Public code adds the noise in evaluation too; here evaluation is without.
    "s2": PUBLIC
    | {
        "ebt_type": "time_embed",
        "mcmc_num_steps": 1,
        "mcmc_step_size": 5.0,
        "randomize_mcmc_step_size_scale": 2.0,
        "randomize_mcmc_num_steps": 2,
        "randomize_mcmc_num_steps_min": 2,
        "normalize_initial_condition": True,
        "langevin_dynamics_noise": 3.0,
        "no_langevin_during_eval": True,
        "no_mcmc_detach": True,
        "truncate_mcmc": True,
        "mcmc_replay_buffer": True,
    },
}


def energy_measures(values: Mapping[str, Any], loss_unit: str = "") -> tuple[Measure, ...]:
    """What a model that walks down an energy measures besides its task's own; nothing for another model."""
    if values["model_name"] != "ebt":
        return ()
    return (
        Measure("thinking_gain", "thinking gain", loss_unit, "higher"),
        Measure("loss_step_*", "loss after step *", loss_unit, "lower"),
        Measure("steps", "steps down the energy, T", "steps", split=False),
        Measure("energy_first", "energy before the first step", split=False),
        Measure("energy_last", "energy before the last step", split=False),
        Measure("energy_gap", "energy drop along the walk", split=False),
        Measure("energy_gradient_norm", "slope of the energy", "norm of dE/dp", split=False),
        Measure("step_size", "step size of the descent", split=False),
        Measure("learning_rate/step_size", "learning rate of the step size", split=False),
        Measure("nonfinite_steps", "descent steps that are not finite", "share of steps", "lower", split=False),
        Measure("thinking_gain", "thinking gain in training", loss_unit, "higher", split=False),
        Measure("contrastive_loss", "contrastive loss", loss_unit, "lower", split=False),
    )


def step_numbers(values: Mapping[str, Any]) -> range:
    """The steps of a walk after which a validation measures the loss; 0 is before the first."""
    if values["model_name"] != "ebt":
        return range(0)
    first = 0 if values["denoising_initial_condition"] == "prior" else 1
    longest = values["mcmc_num_steps"] + values["randomize_mcmc_num_steps"]
    return range(first, values.get("evaluation_steps", longest) + 1)


def energy_rule(*names: str) -> Callable[[Callable[[ResolvedFlags], str | None]], Rule]:
    """A check of flags that only an energy-based model uses."""

    def register(check: Callable[[ResolvedFlags], str | None]) -> Rule:
        return rule("model_name", *names)(lambda s: check(s) if s["model_name"] == "ebt" else None)

    return register


@energy_rule(
    *("goal", "checkpoint_monitor_string", "mcmc_num_steps", "randomize_mcmc_num_steps"),
    "denoising_initial_condition",
)
def check_watched_step(s: ResolvedFlags) -> str | None:
    """A goal or a best checkpoint of loss_step_K needs a walk of K steps."""
    for name, metric in watched_metrics(s).items():
        number = re.fullmatch(r"valid_loss_step_(0|[1-9][0-9]{0,5})", metric)
        if metric.startswith("valid_loss_step_") and not (number and int(number[1]) in step_numbers(s.values)):
            return unmeasured(s, name, metric)
    return None


@energy_rule("randomize_mcmc_num_steps_min", "randomize_mcmc_num_steps", "randomize_mcmc_num_steps_final_landscape")
def check_repeats(s: ResolvedFlags) -> str | None:
    fewest, extra = s["randomize_mcmc_num_steps_min"], s["randomize_mcmc_num_steps"]
    for name in ("randomize_mcmc_num_steps_min", "randomize_mcmc_num_steps_final_landscape"):
        if extra == 0 and s[name] and s.is_set(name):
            why = s.set_by_clause("randomize_mcmc_num_steps")
            return (
                f"{s.label(name)} has no effect with --randomize_mcmc_num_steps 0{why}: remove it, or give "
                "--randomize_mcmc_num_steps of at least 1."
            )
    if extra == 0 or fewest <= extra + 1:
        return None
    return (
        f"{s.label('randomize_mcmc_num_steps_min')} is {fewest}: a landscape is repeated at most "
        f"--randomize_mcmc_num_steps {extra} + 1 = {extra + 1} times; give at most {extra + 1}."
    )


@energy_rule("truncate_mcmc", "mcmc_last_step_loss")
def check_last_step_loss(s: ResolvedFlags) -> str | None:
    if not s["truncate_mcmc"] or not s["mcmc_last_step_loss"]:
        return None
    one, other = "truncate_mcmc", "mcmc_last_step_loss"
    if s.set_by_clause(one):
        one, other = other, one
    return (
        f"{s.label(one)} contradicts --{other}{s.set_by_clause(other)}: both judge the last step only, --truncate_mcmc "
        "differentiates only that one, --mcmc_last_step_loss all; add --no-mcmc_last_step_loss or --no-truncate_mcmc."
    )


@energy_rule("mcmc_step_size", "mcmc_step_size_lr_multiplier")
def check_step_size_rate(s: ResolvedFlags) -> str | None:
    name = "mcmc_step_size_lr_multiplier"
    if s["mcmc_step_size"] != "auto" or s[name] is None or not s.is_set(name):
        return None
    return (
        f"{s.label(name)} has no effect with --mcmc_step_size auto, whose rate follows the size it finds: "
        "remove it, or give --mcmc_step_size a number."
    )


@energy_rule("energy_form", "denoising_initial_condition", "mcmc_replay_buffer")
def check_prior(s: ResolvedFlags) -> str | None:
    if s["denoising_initial_condition"] != "prior":
        return None
    name = s.label("denoising_initial_condition")
    if s["energy_form"] != "residual":
        why = s.set_by_clause("energy_form")
        return (
            f"{name} is 'prior': there is no Transformer++ to start from with --energy_form scalar{why}; choose "
            "random_noise or zeros, or --energy_form residual."
        )
    if s["mcmc_replay_buffer"]:
        return (
            f"{s.label('mcmc_replay_buffer')} contradicts --denoising_initial_condition prior: a replayed row starts "
            "from its old prediction; remove it, or choose --denoising_initial_condition random_noise."
        )
    return None


@energy_rule("langevin_dynamics_noise", "langevin_dynamics_noise_learnable", "no_langevin_during_eval")
def check_langevin_noise(s: ResolvedFlags) -> str | None:
    if s["langevin_dynamics_noise"] > 0:
        return None
    remedy = "remove it, or give --langevin_dynamics_noise above 0."
    for name, why in {"langevin_dynamics_noise_learnable": "it would stay 0; ", "no_langevin_during_eval": ""}.items():
        if s[name] and s.is_set(name):
            return f"{s.label(name)} has no effect with --langevin_dynamics_noise 0: {why}{remedy}"
    return None


@energy_rule(
    "mcmc_replay_buffer",
    "mcmc_replay_buffer_size",
    "mcmc_replay_buffer_sample_bs_percent",
    "batch_size_per_device",
)
def check_replay_buffer_size(s: ResolvedFlags) -> str | None:
    size, share, batch = (
        s[name] for name in ("mcmc_replay_buffer_size", "mcmc_replay_buffer_sample_bs_percent", "batch_size_per_device")
    )
    rows = int(share * batch)
    if not s["mcmc_replay_buffer"] or size >= rows:
        return None
    return (
        f"{s.label('mcmc_replay_buffer_size')} is {size}: it must give --mcmc_replay_buffer_sample_bs_percent "
        f"{format_value(share)} of --batch_size_per_device {batch}; give at least {rows}, or a smaller share."
    )


ENERGY_CHECKS = (
    check_watched_step,
    check_repeats,
    check_last_step_loss,
    check_step_size_rate,
    check_prior,
    check_langevin_noise,
    check_replay_buffer_size,
)
