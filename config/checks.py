"""Judges the settled values: flags with a grammar of their own, flags that have no effect, flags that contradict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.notify import VARIABLE, mark_of
from core.text import listing, shown

from .flags import FLAGS, SIZED, Flag
from .goal import BETTER_WHEN_LARGER, MEASURED, MEASURED_OF_ENERGY, Goal, is_measured
from .recipes import RECIPE_FLAGS

RECORD = "the record"  # where values come from that a run of before has written down


@dataclass(frozen=True)
class Settled:
    """The values of all flags, where each came from, and what it would be if nobody had given it.

    rehearsed: flags for which that is the value of a rehearsal.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    unasked: Mapping[str, Any]
    origin: str = ""
    rehearsed: Set[str] = frozenset()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def given(self, name: str) -> bool:
        """Whether a person asked for it; a file that restates a default (a saved record does) asks for nothing."""
        source = self.sources[name]
        return source == "command line" or (source == "file" and self.values[name] != self.unasked[name])

    def called(self, name: str) -> str:
        """The flag at the start of a message: --x, or x in run.yaml."""
        return f"{name} in {self.origin}" if self.sources[name] == "file" else f"--{name}"

    def set_by(self, name: str) -> str:
        """Who chose a value that a person may not have typed, as the end of a clause: ", which --recipe s1 sets"."""
        source = self.sources[name]
        return f", which {source} sets" if source.startswith("--") else ""


Rule = Callable[[Settled], str | None]
RULES: list[tuple[tuple[str, ...], Rule]] = []


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a check of these flags together; it is left out when one of them is already known to be wrong."""

    def register(check: Rule) -> Rule:
        RULES.append((names, check))
        return check

    return register


def energy_rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a check of flags that only an energy-based model uses."""

    def register(check: Rule) -> Rule:
        return rule("model_name", *names)(lambda s: check(s) if s["model_name"] == "ebt" else None)

    return register


def problems_of(settled: Settled, flags: Mapping[str, Flag], wrong: set[str]) -> list[str]:
    """Everything wrong with the values, one sentence each; `wrong` names flags whose problem is already told."""
    problems = []
    for name, grammar in GRAMMARS.items():
        what = None if name not in flags or name in wrong or settled[name] is None else grammar(settled[name])
        if what:
            wrong = wrong | {name}
            problems.append(f"{settled.called(name)} is {shown_text(settled[name])}: {what}.")
    idle = [unused(flag, flags, settled, wrong) for flag in flags.values() if flag.name not in wrong]
    clashes = [check(settled) for names, check in RULES if flags.keys() >= set(names) and not wrong.intersection(names)]
    return problems + [problem for problem in idle + clashes if problem]


def shown_text(value: Any) -> str:
    return repr(value) if isinstance(value, str) else shown(value)


def unused(flag: Flag, flags: Mapping[str, Flag], settled: Settled, wrong: set[str]) -> str | None:
    """Says when a given flag has no effect because of the value of a flag that it needs; the first such one."""
    from_file = settled.sources[flag.name] == "file"
    if not settled.given(flag.name) or (from_file and settled[flag.name] == flag.default):
        return None
    name = settled.called(flag.name) if from_file else flag.spelled(settled[flag.name])
    for other, values in flag.needs.items():
        if other not in flags or other in wrong or settled[other] in values:
            continue
        value = settled[other]
        if flags[other].kind is not bool:
            choices = listing([shown(choice) for choice in values])
            why = f"--{other} {shown(value)}{settled.set_by(other)}"
            return f"{name} is not used by {why}: remove it, or choose --{other} {choices}."
        needed, why = flags[other].spelled(values[0]), settled.set_by(other)
        if value == flags[other].default:
            return f"{name} has no effect without {needed}: remove it, or add {needed}."
        if why:
            return f"{name} has no effect with {flags[other].spelled(value)}{why}: remove it, or add {needed}."
        return f"{name} has no effect with {flags[other].spelled(value)}: remove one of them."
    return None


def file_name(name: str) -> str | None:
    if "/" in name or name in (".", ".."):
        return "it becomes part of a file's name; leave out '/', and do not use '.' or '..'"
    if len(name) > 100 or len(name.encode("utf-8", "replace")) > 200:
        return "it becomes part of a file's name; use 1 to 100 characters (200 bytes)"
    return None


def share_or_count(number: float) -> str | None:
    if number <= 1 or number.is_integer():
        return None
    return "above 1 it is a number of batches; give a whole number, or a share of at most 1"


def gpus_grammar(text: str) -> str | None:
    if text in ("auto", "none", "-1"):
        return None
    if text == "0":
        return "choose none to train without a GPU, or a number of GPUs from 1 on"
    if not re.fullmatch(r"[1-9][0-9]{0,4}|[0-9]{1,5}(,[0-9]{1,5})+", text):
        return "choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2"
    numbers = [int(number) for number in text.split(",")]
    return None if len(set(numbers)) == len(numbers) else "name each GPU once"


def tokenizer_grammar(text: str) -> str | None:
    if text.partition(":")[0] != "bpe":
        return None
    if re.fullmatch(r"bpe:[0-9]{1,9}", text) and int(text[4:]) >= 300:
        return None
    return "write bpe:SIZE with a whole number of at least 300, such as bpe:4096"


def goal_grammar(text: str) -> str | None:
    try:
        Goal.parse(text)
    except ValueError as error:
        return str(error)
    return None


def wandb_project_grammar(name: str) -> str | None:
    if len(name) <= 128 and not re.search(r"[/\\#?%:]", name):
        return None
    return "W&B takes at most 128 characters, and none of / \\ # ? % :"


def wandb_tags_grammar(tags: tuple[str, ...]) -> str | None:
    return "W&B takes tags of at most 64 characters" if any(len(tag) > 64 for tag in tags) else None


def strategy_grammar(name: str) -> str | None:
    if name in ("auto", "ddp", "ddp_find_unused_parameters_true"):
        return None
    if name.startswith("fsdp"):
        return (
            "sharded training is not built yet (the step size has no dimension to shard, and clipping would see a part "
            "of the gradient); choose ddp"
        )
    return "choose auto or ddp"


GRAMMARS: dict[str, Callable[[Any], str | None]] = {
    "run_name": file_name,
    "console_log_filename": file_name,
    "gpus": gpus_grammar,
    "tokenizer": tokenizer_grammar,
    "wandb_project": wandb_project_grammar,
    "wandb_tags": wandb_tags_grammar,
    "goal": goal_grammar,
    "distributed_strategy": strategy_grammar,
    "seed": lambda seed: None if seed < 2**32 else "give a whole number from 0 to 4294967295",
    "val_check_interval": share_or_count,
    "overfit_batches": share_or_count,
    "limit_train_batches": share_or_count,
    "limit_val_batches": share_or_count,
    "limit_test_batches": share_or_count,
}


@rule("notify")
def no_secret_is_kept(s: Settled) -> str | None:
    """What a command line has is hidden before it is read (notify.py); what comes from elsewhere would be kept."""
    if s["notify"] is None or mark_of(s["notify"]) == s["notify"]:
        return None
    return (
        f"{s.called('notify')} may hold a secret, and what is written there is kept with the run: put it into the "
        f"variable {VARIABLE}, or into a script, and give the script's name."
    )


@rule("embedding_dim", "multiheaded_attention_heads")
def heads_fit_the_width(s: Settled) -> str | None:
    width, heads = s["embedding_dim"], s["multiheaded_attention_heads"]
    if width % 2:
        return f"{s.called('embedding_dim')} is {width}: give an even width, since rotary positions turn pairs."
    if width % (2 * heads) == 0:
        return None
    what = "the width of a head must be even" if width % heads == 0 else "heads must divide the width"
    fitting = [number for number in range(1, 1025) if width % (2 * number) == 0]
    near = [number for number in fitting if number < heads][-1:] + [number for number in fitting if number > heads][:1]
    return (
        f"{s.called('multiheaded_attention_heads')} is {heads}, with --embedding_dim {width}: {what}; "
        f"choose {listing([str(number) for number in near])} heads."
    )


@rule("warm_up_steps", "max_steps", "max_scheduling_steps")
def warm_up_ends_in_time(s: Settled) -> str | None:
    end = "max_scheduling_steps" if s["max_scheduling_steps"] is not None else "max_steps"
    if s["warm_up_steps"] is None or s["warm_up_steps"] <= s[end]:
        return None
    if end in s.rehearsed and not s.given(end):  # a rehearsal of a longer run may stop within its warm-up
        return None
    return (
        f"{s.called('warm_up_steps')} is {s['warm_up_steps']}, over --{end} {s[end]}: "
        f"give --warm_up_steps of at most {s[end]}, or more steps."
    )


@rule("validation_split_pct", "test_split_pct")
def splits_leave_text_to_train_on(s: Settled) -> str | None:
    valid, test = s["validation_split_pct"], s["test_split_pct"]
    if valid + test < 1:
        return None
    return (
        f"{s.called('validation_split_pct')} is {shown(valid)} and --test_split_pct {shown(test)}: "
        "nothing is left to train on; give shares that sum to less than 1."
    )


@rule("execution_mode", "finetuning_model_ckpt", "resume_training_ckpt")
def finetuning_has_one_start(s: Settled) -> str | None:
    start, resume = s["finetuning_model_ckpt"], s["resume_training_ckpt"]
    if start is not None and resume is not None:
        return (
            "--resume_training_ckpt and --finetuning_model_ckpt are both given: "
            "a resumed run has its own weights; remove one of them."
        )
    if s["execution_mode"] == "finetune" and start is None and resume is None:
        return (
            f"{s.called('execution_mode')} is 'finetune' without a checkpoint to start from: "
            "add --finetuning_model_ckpt PATH."
        )
    return None


@rule("only_test", "only_test_model_ckpt", "resume_training_ckpt")
def testing_has_a_checkpoint(s: Settled) -> str | None:
    if s["only_test"] and s["resume_training_ckpt"] is not None:
        return "--resume_training_ckpt has no effect with --only_test: use --only_test_model_ckpt instead."
    if s["only_test"] and s["only_test_model_ckpt"] is None:
        return "--only_test is given without a checkpoint to evaluate: add --only_test_model_ckpt PATH, or last."
    return None


@rule("execution_mode", "only_test")
def inference_is_a_test(s: Settled) -> str | None:
    if s["execution_mode"] != "inference" or s["only_test"]:
        return None
    return (
        f"{s.called('execution_mode')} is 'inference' without --only_test: "
        "add --only_test --only_test_model_ckpt PATH; to generate text, use python -m inference generate."
    )


def needs_candidates(name: str, s: Settled) -> str | None:
    if s["infer_generated_samples"] > 1 or not s.given(name):
        return None
    return f"{s.called(name)} has no effect with --infer_generated_samples 1: remove it, or ask for more."


for _name in ("infer_energy_sampling_technique", "infer_debug_sample_distances"):
    rule("infer_generated_samples", _name)(partial(needs_candidates, _name))


@rule("infer_ebt_override_alpha", "infer_alpha_final_landscape")
def there_is_a_step_size_for_the_last_landscape(s: Settled) -> str | None:
    if not s["infer_alpha_final_landscape"] or s["infer_ebt_override_alpha"] is not None:
        return None
    name = s.called("infer_alpha_final_landscape")
    return f"{name} has no effect without --infer_ebt_override_alpha: remove it, or give one."


@rule("debug_dataloader", "find_lr", "find_batch_size", "only_test")
def one_thing_instead_of_training(s: Settled) -> str | None:
    given = [f"--{name}" for name in ("debug_dataloader", "find_lr", "find_batch_size", "only_test") if s[name]]
    if len(given) < 2 or given == ["--find_lr", "--find_batch_size"]:
        return None
    return f"{listing(given, 'and')} are given together: each does its own work instead of training; keep one."


@rule("val_check_interval", "check_val_every_n_epoch")
def one_rhythm_of_validation(s: Settled) -> str | None:
    if s["check_val_every_n_epoch"] is None or not s.given("val_check_interval"):
        return None
    return f"{s.called('val_check_interval')} has no effect with --check_val_every_n_epoch: remove one of them."


@rule("goal", "early_stop", "limit_val_batches")
def an_early_end_has_validations(s: Settled) -> str | None:
    if s["limit_val_batches"] != 0:
        return None
    for name in ("goal", "early_stop"):
        if s[name] and s.given(name):
            return f"{s.called(name)} has no effect with --limit_val_batches 0: remove one of them."
    return None


@rule(
    *("model_name", "goal", "early_stop", "checkpoint_monitor_string", "mcmc_num_steps", "randomize_mcmc_num_steps"),
    "denoising_initial_condition",
)
def what_is_watched_is_measured(s: Settled) -> str | None:
    first = 0 if s["denoising_initial_condition"] == "prior" else 1
    last = s["mcmc_num_steps"] + s["randomize_mcmc_num_steps"]
    steps = range(first, last + 1) if s["model_name"] == "ebt" else range(0)
    goal = Goal.parse(s["goal"]).metric if s["goal"] else "valid_loss"
    watched = s["checkpoint_monitor_string"]
    if s.origin == RECORD and s.sources["checkpoint_monitor_string"] == "file" and not s["early_stop"]:
        watched = "valid_loss"  # a run of before, which had no best checkpoint, can still be read
    for flag, metric in (("goal", goal), ("checkpoint_monitor_string", watched)):
        if not is_measured(metric, steps):
            known = listing((*MEASURED, *(MEASURED_OF_ENERGY if steps else ())))
            return (
                f"{s.called(flag)} is {shown_text(s[flag])}: a validation of --model_name {s['model_name']} "
                f"does not measure {metric}; choose {known}."
            )
    return None


@rule("checkpoint_monitor_string", "checkpoint_monitor_mode")
def the_best_is_not_the_worst(s: Settled) -> str | None:
    watched = s["checkpoint_monitor_string"]
    if watched not in BETTER_WHEN_LARGER or s["checkpoint_monitor_mode"] == "max" or s.origin == RECORD:
        return None
    name = s.called("checkpoint_monitor_string")
    return f"{name} is {shown_text(watched)}, which is better when larger: add --checkpoint_monitor_mode max."


@rule("prefetch_factor", "num_workers", "debug_dataloader")
def prefetching_has_workers(s: Settled) -> str | None:
    if not s.given("prefetch_factor") or s["num_workers"] > 0 or s["debug_dataloader"]:
        return None
    return f"{s.called('prefetch_factor')} has no effect with --num_workers 0: remove it, or give --num_workers."


@rule("seed", "is_random_seed")
def one_way_to_a_seed(s: Settled) -> str | None:
    # the record of a run holds the seed that was drawn beside is_random_seed, so only a command line is judged
    if not s["is_random_seed"] or {s.sources["seed"], s.sources["is_random_seed"]} != {"command line"}:
        return None
    return "--seed has no effect with --is_random_seed: remove one of them."


@rule("model_size", *SIZED)
def size_is_not_overruled_by_the_file(s: Settled) -> str | None:
    return overruled_by_the_file(s, "model_size", SIZED)


@rule("recipe", *RECIPE_FLAGS)
def recipe_is_not_overruled_by_the_file(s: Settled) -> str | None:
    return overruled_by_the_file(s, "recipe", tuple(name for name in FLAGS if name in RECIPE_FLAGS))


def overruled_by_the_file(s: Settled, name: str, stands_for: Sequence[str]) -> str | None:
    """Says when the flag `name` was typed for values that the file, a saved record perhaps, sets all otherwise."""
    overruled = [flag for flag in stands_for if s.sources[flag] == "file" and s[flag] != s.unasked[flag]]
    left = [flag for flag in stands_for if s.sources[flag] not in ("file", "command line")]
    if s.sources[name] != "command line" or not overruled or left:
        return None
    return (
        f"--{name} {s[name]} has no effect with {s.origin}, which sets {listing(overruled, 'and')}: remove one of them."
    )


@energy_rule("randomize_mcmc_num_steps_min", "randomize_mcmc_num_steps", "randomize_mcmc_num_steps_final_landscape")
def repeats_can_be_drawn(s: Settled) -> str | None:
    fewest, extra = s["randomize_mcmc_num_steps_min"], s["randomize_mcmc_num_steps"]
    for name in ("randomize_mcmc_num_steps_min", "randomize_mcmc_num_steps_final_landscape"):
        if extra == 0 and s[name] and s.given(name):
            why = s.set_by("randomize_mcmc_num_steps")
            return (
                f"{s.called(name)} has no effect with --randomize_mcmc_num_steps 0{why}: remove it, or give "
                "--randomize_mcmc_num_steps of at least 1."
            )
    if extra == 0 or fewest <= extra + 1:
        return None
    return (
        f"{s.called('randomize_mcmc_num_steps_min')} is {fewest}: a landscape is repeated at most "
        f"--randomize_mcmc_num_steps {extra} + 1 = {extra + 1} times; give at most {extra + 1}."
    )


@energy_rule("truncate_mcmc", "mcmc_last_step_loss")
def the_last_step_is_judged_in_one_way(s: Settled) -> str | None:
    if not s["truncate_mcmc"] or not s["mcmc_last_step_loss"]:
        return None
    one, other = "truncate_mcmc", "mcmc_last_step_loss"
    if s.set_by(one):
        one, other = other, one
    return (
        f"{s.called(one)} contradicts --{other}{s.set_by(other)}: both judge the last step only, --truncate_mcmc "
        "differentiates only that one, --mcmc_last_step_loss all; add --no-mcmc_last_step_loss or --no-truncate_mcmc."
    )


@energy_rule("mcmc_step_size", "mcmc_step_size_lr_multiplier")
def a_found_step_size_has_its_own_rate(s: Settled) -> str | None:
    name = "mcmc_step_size_lr_multiplier"
    if s["mcmc_step_size"] != "auto" or s[name] is None or not s.given(name):
        return None
    return (
        f"{s.called(name)} has no effect with --mcmc_step_size auto, whose rate follows the size it finds: "
        "remove it, or give --mcmc_step_size a number."
    )


@energy_rule("modality", "denoising_initial_condition")
def language_starts_from_a_distribution(s: Settled) -> str | None:
    if s["modality"] != "NLP" or s["denoising_initial_condition"] != "most_recent_embedding":
        return None
    return (
        f"{s.called('denoising_initial_condition')} is 'most_recent_embedding': a language prediction is a "
        "distribution over the vocabulary, and the most recent embedding is not one; choose random_noise or zeros."
    )


@energy_rule("energy_form", "denoising_initial_condition", "mcmc_replay_buffer")
def a_prior_is_there_to_start_from(s: Settled) -> str | None:
    if s["denoising_initial_condition"] != "prior":
        return None
    name = s.called("denoising_initial_condition")
    if s["energy_form"] != "residual":
        why = s.set_by("energy_form")
        return (
            f"{name} is 'prior': there is no Transformer++ to start from with --energy_form scalar{why}; choose "
            "random_noise or zeros, or --energy_form residual."
        )
    if s["mcmc_replay_buffer"]:
        return (
            f"{s.called('mcmc_replay_buffer')} contradicts --denoising_initial_condition prior: a replayed row starts "
            "from its old prediction; remove it, or choose --denoising_initial_condition random_noise."
        )
    return None


@energy_rule("langevin_dynamics_noise", "langevin_dynamics_noise_learnable", "no_langevin_during_eval")
def there_is_noise_to_learn_or_leave_out(s: Settled) -> str | None:
    if s["langevin_dynamics_noise"] > 0:
        return None
    remedy = "remove it, or give --langevin_dynamics_noise above 0."
    for name, why in {"langevin_dynamics_noise_learnable": "it would stay 0; ", "no_langevin_during_eval": ""}.items():
        if s[name] and s.given(name):
            return f"{s.called(name)} has no effect with --langevin_dynamics_noise 0: {why}{remedy}"
    return None


@energy_rule(
    "mcmc_replay_buffer",
    "mcmc_replay_buffer_size",
    "mcmc_replay_buffer_sample_bs_percent",
    "batch_size_per_device",
)
def replay_buffer_holds_its_share(s: Settled) -> str | None:
    size, share, batch = (
        s[name] for name in ("mcmc_replay_buffer_size", "mcmc_replay_buffer_sample_bs_percent", "batch_size_per_device")
    )
    rows = int(share * batch)
    if not s["mcmc_replay_buffer"] or size >= rows:
        return None
    return (
        f"{s.called('mcmc_replay_buffer_size')} is {size}: it must give --mcmc_replay_buffer_sample_bs_percent "
        f"{shown(share)} of --batch_size_per_device {batch}; give at least {rows}, or a smaller share."
    )
