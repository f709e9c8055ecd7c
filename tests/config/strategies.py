"""Settings as hypothesis draws them: of one flag, and of a run that is fine as a whole."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from config.energy import RECIPES
from config.flags import Flag
from config.parser import TASK_NAMES
from config.settings import all_flags

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
    names = draw(st.sets(st.sampled_from(sorted(all_flags().keys() - {"config", *TASK_NAMES}))))
    chosen = {name: draw(values(all_flags()[name])) for name in sorted(names)}
    if names & {"embedding_dim", "multiheaded_attention_heads", "model_size"}:
        heads, pairs = draw(st.integers(1, 64)), draw(st.integers(1, 64))
        chosen |= {"multiheaded_attention_heads": heads, "embedding_dim": 2 * heads * pairs}
    if chosen.get("warm_up_steps") is not None:
        end = chosen.get("max_scheduling_steps") or chosen.get("max_steps", all_flags()["max_steps"].default)
        chosen["warm_up_steps"] = min(chosen["warm_up_steps"], end)
    for name in draw(st.permutations(["debug_dataloader", "find_lr", "find_batch_size", "only_test"]))[1:]:
        chosen.pop(name, None)
    if chosen.get("execution_mode") == "finetune":
        chosen["finetuning_model_ckpt"] = chosen.get("finetuning_model_ckpt") or "a.ckpt"
    if chosen.get("only_test"):
        chosen["only_test_model_ckpt"] = chosen.get("only_test_model_ckpt") or "last"
    if chosen.get("only_test") or chosen.get("finetuning_model_ckpt"):
        chosen.pop("resume_training_ckpt", None)
    if chosen.get("execution_mode") == "inference" and not chosen.get("only_test"):
        chosen.pop("execution_mode")
    if chosen.get("execution_mode") != "inference":
        chosen = {name: value for name, value in chosen.items() if not name.startswith("infer_")}
    if chosen.get("infer_generated_samples", 1) == 1:
        for name in ("infer_energy_sampling_technique", "infer_debug_sample_distances"):
            chosen.pop(name, None)
    if chosen.get("infer_ebt_override_alpha") is None:
        chosen.pop("infer_alpha_final_landscape", None)
    if chosen.get("check_val_every_n_epoch"):
        chosen.pop("val_check_interval", None)
    if chosen.get("limit_val_batches") == 0:
        chosen = {name: value for name, value in chosen.items() if name not in ("goal", "early_stop")}
    if not chosen.get("num_workers"):
        chosen.pop("prefetch_factor", None)
    if chosen.get("model_name") == "baseline_transformer":
        return {name: value for name, value in chosen.items() if needs_are_met(name, chosen)}
    chosen = with_sound_energy(chosen)
    while idle := [name for name in chosen if not needs_are_met(name, chosen)]:
        chosen.pop(idle[0])
    return chosen


def settled(name: str, chosen: dict[str, Any]) -> Any:
    """The value of a flag in a run where these are chosen."""
    implied = "public" if isinstance(chosen.get("mcmc_step_size"), float) else all_flags()["recipe"].default
    return chosen.get(name, RECIPES[chosen.get("recipe", implied)].get(name, all_flags()[name].default))


def needs_are_met(name: str, chosen: dict[str, Any]) -> bool:
    return all(settled(other, chosen) in needed for other, needed in all_flags()[name].needs.items())


def with_sound_energy(chosen: dict[str, Any]) -> dict[str, Any]:
    """The settings of an energy-based model without the energy flags that clash."""
    chosen = dict(chosen)
    if settled("mcmc_step_size", chosen) == "auto":
        chosen.pop("mcmc_step_size_lr_multiplier", None)
    if settled("denoising_initial_condition", chosen) == "prior":
        if settled("energy_form", chosen) == "scalar":
            chosen["denoising_initial_condition"] = "random_noise"
        elif settled("mcmc_replay_buffer", chosen):
            chosen["mcmc_replay_buffer"] = False
    if settled("truncate_mcmc", chosen) and settled("mcmc_last_step_loss", chosen):
        chosen["truncate_mcmc"] = False
    if settled("langevin_dynamics_noise", chosen) == 0:
        chosen.pop("langevin_dynamics_noise_learnable", None)
        chosen.pop("no_langevin_during_eval", None)
    extra = settled("randomize_mcmc_num_steps", chosen)
    if extra == 0:
        chosen.pop("randomize_mcmc_num_steps_final_landscape", None)
    if extra == 0 or chosen.get("randomize_mcmc_num_steps_min", 0) > extra + 1:
        chosen.pop("randomize_mcmc_num_steps_min", None)
    if settled("mcmc_replay_buffer", chosen):
        chosen["batch_size_per_device"] = 8
        chosen["mcmc_replay_buffer_size"] = max(8, settled("mcmc_replay_buffer_size", chosen))
    return chosen
