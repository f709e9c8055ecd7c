"""Settings as hypothesis draws them: of one flag, and of a run that is fine as a whole."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from config.energy import RECIPES
from config.flags import Flag
from config.parser import TASK_NAMES
from config.task_flags import all_flags
from tests.config.problems import LANGUAGE_INFERENCE

TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20) | st.sampled_from(
    ["null", "true", "on", "~", "1e3", "0x10", "007", "2024-01-01", "- a", "a: b", "#", " x ", "=", "<<", "'", "!x"]
)

GRAMMARS: dict[str, st.SearchStrategy[Any]] = {
    "run_name": TEXTS.filter(lambda text: "/" not in text and text not in (".", "..")),
    "wandb_project": TEXTS.filter(lambda text: not set(text) & set("/\\#?%:")),
    "console_log_filename": TEXTS.filter(lambda text: "/" not in text and text not in (".", "..")),
    "notify": st.sampled_from([None, "tell.sh", "https://host/***", "mail ***"]),
    "gpus": st.sampled_from(["auto", "none", "-1", "2", "0,3"]),
    "tokenizer": st.sampled_from(["bytes", "bpe:300", "org/name"]),
    "goal": st.sampled_from(["valid_loss<1.4", "valid_accuracy >= .5"]),
    "match_flops": st.sampled_from(["2.8e12", "a_run"]),
    "checkpoint_monitor_string": st.sampled_from(["valid_loss", "valid_perplexity", "valid_bits_per_byte"]),
    "distributed_strategy": st.sampled_from(["auto", "ddp"]),
    "seed": st.integers(0, 2**32 - 1),
    "validation_split_pct": st.floats(0, 0.4),
    "test_split_pct": st.floats(0, 0.5),
    "config": st.none(),
}


def values(flag: Flag) -> st.SearchStrategy[Any]:
    """Values that the flag takes when it is judged alone."""
    if flag.name in GRAMMARS:
        return GRAMMARS[flag.name]
    if flag.kind is bool:
        return st.booleans()
    if flag.kind is tuple:
        return st.lists(TEXTS, max_size=3).map(tuple)
    low = flag.low if flag.low is not None else flag.above
    if flag.name == "denoising_initial_condition":
        return st.sampled_from(["random_noise", "zeros", "prior"])
    if flag.kind is int:
        drawn: st.SearchStrategy[Any] = st.integers(int(low or 0), 2**63 - 1)
    elif flag.kind is float:
        drawn = st.floats(low, flag.high, exclude_min=flag.above is not None, allow_nan=False, allow_infinity=False)
        if flag.name.startswith(("limit_", "overfit_", "val_check_")):
            drawn = drawn.map(lambda number: number if number <= 1 else float(round(number)))
    else:
        drawn = st.sampled_from(flag.choices) if flag.choices else TEXTS
    drawn = drawn | st.sampled_from(flag.words) if flag.words else drawn
    return st.none() | drawn if flag.optional else drawn


@st.composite
def valid_settings(draw: st.DrawFn) -> dict[str, Any]:
    """{flag: value} of a run that is fine as a whole: drawn one by one, then what clashes is taken out."""
    names = draw(st.sets(st.sampled_from(sorted(LANGUAGE_INFERENCE.flags.keys() - {"config", *TASK_NAMES}))))
    settings = {name: draw(values(all_flags()[name])) for name in sorted(names)}
    if names & {"embedding_dim", "multiheaded_attention_heads", "model_size"}:
        heads, pairs = draw(st.integers(1, 64)), draw(st.integers(1, 64))
        settings |= {"multiheaded_attention_heads": heads, "embedding_dim": 2 * heads * pairs}
    if settings.get("warm_up_steps") is not None:
        end = settings.get("max_scheduling_steps") or settings.get("max_steps", all_flags()["max_steps"].default)
        settings["warm_up_steps"] = min(settings["warm_up_steps"], end)
    for name in draw(st.permutations(["debug_dataloader", "find_lr", "find_batch_size", "only_test"]))[1:]:
        settings.pop(name, None)
    if settings.get("execution_mode") == "finetune":
        settings["finetuning_model_ckpt"] = settings.get("finetuning_model_ckpt") or "a.ckpt"
    if settings.get("only_test"):
        settings["only_test_model_ckpt"] = settings.get("only_test_model_ckpt") or "last"
    if settings.get("only_test") or settings.get("finetuning_model_ckpt"):
        settings.pop("resume_training_ckpt", None)
    if settings.get("execution_mode") == "inference" and not settings.get("only_test"):
        settings.pop("execution_mode")
    if settings.get("execution_mode") != "inference":
        settings = {name: value for name, value in settings.items() if not name.startswith("infer_")}
    if settings.get("infer_generated_samples", 1) == 1:
        for name in ("infer_energy_sampling_technique", "infer_debug_sample_distances"):
            settings.pop(name, None)
    if settings.get("infer_ebt_override_alpha") is None:
        settings.pop("infer_alpha_final_landscape", None)
    if settings.get("check_val_every_n_epoch"):
        settings.pop("val_check_interval", None)
    if settings.get("limit_val_batches") == 0:
        settings = {name: value for name, value in settings.items() if name not in ("goal", "early_stop")}
    if not settings.get("num_workers"):
        settings.pop("prefetch_factor", None)
    if resolved("loops_min", settings) > resolved("loops_max", settings):
        settings = {name: value for name, value in settings.items() if name not in ("loops_min", "loops_max")}
    if settings.get("model_name", "ebt") != "ebt":
        return {name: value for name, value in settings.items() if needs_are_met(name, settings)}
    settings = with_sound_energy(settings)
    while idle := [name for name in settings if not needs_are_met(name, settings)]:
        settings.pop(idle[0])
    return settings


def resolved(name: str, settings: dict[str, Any]) -> Any:
    """The value of a flag in a run where these are chosen."""
    implied = "public" if isinstance(settings.get("mcmc_step_size"), float) else all_flags()["recipe"].default
    return settings.get(name, RECIPES[settings.get("recipe", implied)].get(name, all_flags()[name].default))


def needs_are_met(name: str, settings: dict[str, Any]) -> bool:
    return all(resolved(other, settings) in needed for other, needed in all_flags()[name].needs.items())


def with_sound_energy(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an energy-based model without the energy flags that clash."""
    settings = dict(settings)
    if resolved("mcmc_step_size", settings) == "auto":
        settings.pop("mcmc_step_size_lr_multiplier", None)
    if resolved("denoising_initial_condition", settings) == "prior":
        if resolved("energy_form", settings) == "scalar":
            settings["denoising_initial_condition"] = "random_noise"
        elif resolved("mcmc_replay_buffer", settings):
            settings["mcmc_replay_buffer"] = False
    if resolved("truncate_mcmc", settings) and resolved("mcmc_last_step_loss", settings):
        settings["truncate_mcmc"] = False
    if resolved("langevin_dynamics_noise", settings) == 0:
        settings.pop("langevin_dynamics_noise_learnable", None)
        settings.pop("no_langevin_during_eval", None)
    extra = resolved("randomize_mcmc_num_steps", settings)
    if extra == 0:
        settings.pop("randomize_mcmc_num_steps_final_landscape", None)
    if extra == 0 or settings.get("randomize_mcmc_num_steps_min", 0) > extra + 1:
        settings.pop("randomize_mcmc_num_steps_min", None)
    if resolved("mcmc_replay_buffer", settings):
        settings["batch_size_per_device"] = 8
        settings["mcmc_replay_buffer_size"] = max(8, resolved("mcmc_replay_buffer_size", settings))
    return settings
