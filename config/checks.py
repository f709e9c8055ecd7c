"""Checks of the resolved values: flags that have no effect, and flags that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from config.settings import SIZE_TABLE_FLAGS
from config.task_flags import legacy_names
from core.environment import NOTIFY
from core.notify import mark_of
from core.text import format_value, join_words

from .flags import Flag
from .task import Check, Goal, Measure, TaskFacts, measure_of, watchable

RECORD = "the record"  # where values come from that an earlier run has written


@dataclass(frozen=True)
class ResolvedFlags:
    """The values of all flags, where each came from, and its default under the task, size, recipe and preset.

    preset_flags: flags whose default is that of a debug preset.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    defaults: Mapping[str, Any]
    origin: str = ""
    preset_flags: Set[str] = frozenset()
    task: TaskFacts | None = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What a validation of a run with these values measures."""
        return watchable(self.task, self.values) if self.task else ()

    def is_set(self, name: str) -> bool:
        """Whether a person asked for it; a file that restates a default (a saved record does) asks for nothing."""
        source = self.sources[name]
        return source == "command line" or (source == "file" and self.values[name] != self.defaults[name])

    def label(self, name: str) -> str:
        """The flag at the start of a message: --x, or x in run.yaml."""
        return f"{name} in {self.origin}" if self.sources[name] == "file" else f"--{name}"

    def set_by_clause(self, name: str) -> str:
        """What set a value that was not typed, as the end of a clause: ", which --recipe s1 sets"."""
        source = self.sources[name]
        return f", which {source} sets" if source.startswith("--") else ""


@dataclass(frozen=True)
class Rule:
    """A check of several flags together; it is skipped where one of them is missing or has a problem already."""

    names: tuple[str, ...]
    check: Callable[[ResolvedFlags], str | None]

    def __call__(self, resolved: ResolvedFlags) -> str | None:
        return self.check(resolved)


def rule(*names: str) -> Callable[[Callable[[ResolvedFlags], str | None]], Rule]:
    """Makes a Rule of these flags from a function."""
    return partial(Rule, names)


def find_problems(resolved: ResolvedFlags, flags: Mapping[str, Flag], wrong: set[str]) -> list[str]:
    """Everything wrong with the values, one sentence each; `wrong` names flags whose problem is reported already."""
    problems = []
    for name, flag in flags.items():
        what = None
        if flag.check and name not in wrong and resolved[name] is not None:
            what = flag.check(resolved[name])
        if what:
            wrong = wrong | {name}
            problems.append(f"{resolved.label(name)} is {quoted(resolved[name])}: {what}.")
    idle = [no_effect_message(flag, flags, resolved, wrong) for flag in flags.values() if flag.name not in wrong]
    checks: list[Check] = [*CHECKS, *(resolved.task.checks if resolved.task else ())]
    if resolved.task and resolved.task.recipes:
        checks.append(recipe_rule(resolved.task, flags))
    clashes = []
    for check in checks:
        names = set(check.names) if isinstance(check, Rule) else set()
        if flags.keys() >= names and not wrong & names:
            clashes.append(check(resolved))
    return problems + [problem for problem in idle + clashes if problem]


def quoted(value: Any) -> str:
    return repr(value) if isinstance(value, str) else format_value(value)


def no_effect_message(flag: Flag, flags: Mapping[str, Flag], resolved: ResolvedFlags, wrong: set[str]) -> str | None:
    """The problem of a given flag that has no effect under the value of a flag that it needs; the first such one."""
    from_file = resolved.sources[flag.name] == "file"
    if not resolved.is_set(flag.name) or (from_file and resolved[flag.name] == flag.default):
        return None
    name = resolved.label(flag.name) if from_file else flag.spelled(resolved[flag.name])
    for other, values in flag.needs.items():
        if other not in flags or other in wrong or resolved[other] in values:
            continue
        value = resolved[other]
        if flags[other].kind is not bool:
            choices = join_words([format_value(choice) for choice in values])
            why = f"--{other} {format_value(value)}{resolved.set_by_clause(other)}"
            return f"{name} is not used by {why}: remove it, or choose --{other} {choices}."
        needed, why = flags[other].spelled(values[0]), resolved.set_by_clause(other)
        if value == flags[other].default:
            return f"{name} has no effect without {needed}: remove it, or add {needed}."
        if why:
            return f"{name} has no effect with {flags[other].spelled(value)}{why}: remove it, or add {needed}."
        return f"{name} has no effect with {flags[other].spelled(value)}: remove one of them."
    return None


@rule("task", "modality", "image_task")
def check_legacy_names(s: ResolvedFlags) -> str | None:
    """--modality and --image_task may be given beside --task where they name the same task."""
    for name, value in legacy_names(s.task).items() if s.task else ():
        if s[name] != value:
            return f"{s.label(name)} is {quoted(s[name])}, which is not --task {s['task']}: remove one of them."
    return None


@rule("notify")
def check_notify_secret(s: ResolvedFlags) -> str | None:
    """A secret on the command line is hidden before it is parsed (core/notify); one from a file would be recorded."""
    if s["notify"] is None or mark_of(s["notify"]) == s["notify"]:
        return None
    return (
        f"{s.label('notify')} may hold a secret, and what is written there is kept with the run: put it into the "
        f"variable {NOTIFY}, or into a script, and give the script's name."
    )


@rule("embedding_dim", "multiheaded_attention_heads")
def check_head_width(s: ResolvedFlags) -> str | None:
    width, heads = s["embedding_dim"], s["multiheaded_attention_heads"]
    if width % 2:
        return f"{s.label('embedding_dim')} is {width}: give an even width, since rotary positions turn pairs."
    if width % (2 * heads) == 0:
        return None
    what = "the width of a head must be even" if width % heads == 0 else "heads must divide the width"
    fitting = [number for number in range(1, 1025) if width % (2 * number) == 0]
    near = [number for number in fitting if number < heads][-1:] + [number for number in fitting if number > heads][:1]
    return (
        f"{s.label('multiheaded_attention_heads')} is {heads}, with --embedding_dim {width}: {what}; "
        f"choose {join_words([str(number) for number in near])} heads."
    )


@rule("warm_up_steps", "max_steps", "max_scheduling_steps")
def check_warm_up(s: ResolvedFlags) -> str | None:
    end = "max_scheduling_steps" if s["max_scheduling_steps"] is not None else "max_steps"
    if s["warm_up_steps"] is None or s["warm_up_steps"] <= s[end]:
        return None
    if end in s.preset_flags and not s.is_set(end):  # a debug run of a longer run may stop within its warm-up
        return None
    return (
        f"{s.label('warm_up_steps')} is {s['warm_up_steps']}, over --{end} {s[end]}: "
        f"give --warm_up_steps of at most {s[end]}, or more steps."
    )


@rule("validation_split_pct", "test_split_pct")
def check_split_shares(s: ResolvedFlags) -> str | None:
    valid, test = s["validation_split_pct"], s["test_split_pct"]
    if valid + test < 1:
        return None
    return (
        f"{s.label('validation_split_pct')} is {format_value(valid)} and --test_split_pct {format_value(test)}: "
        "nothing is left to train on; give shares that sum to less than 1."
    )


@rule("execution_mode", "finetuning_model_ckpt", "resume_training_ckpt")
def check_finetuning_start(s: ResolvedFlags) -> str | None:
    start, resume = s["finetuning_model_ckpt"], s["resume_training_ckpt"]
    if start is not None and resume is not None:
        return (
            "--resume_training_ckpt and --finetuning_model_ckpt are both given: "
            "a resumed run has its own weights; remove one of them."
        )
    if s["execution_mode"] == "finetune" and start is None and resume is None:
        return (
            f"{s.label('execution_mode')} is 'finetune' without a checkpoint to start from: "
            "add --finetuning_model_ckpt PATH."
        )
    return None


@rule("only_test", "only_test_model_ckpt", "resume_training_ckpt")
def check_test_checkpoint(s: ResolvedFlags) -> str | None:
    if s["only_test"] and s["resume_training_ckpt"] is not None:
        return "--resume_training_ckpt has no effect with --only_test: use --only_test_model_ckpt instead."
    if s["only_test"] and s["only_test_model_ckpt"] is None:
        return "--only_test is given without a checkpoint to evaluate: add --only_test_model_ckpt PATH, or last."
    return None


@rule("execution_mode", "only_test")
def check_inference_mode(s: ResolvedFlags) -> str | None:
    if s["execution_mode"] != "inference" or s["only_test"]:
        return None
    return (
        f"{s.label('execution_mode')} is 'inference' without --only_test: "
        "add --only_test --only_test_model_ckpt PATH; to generate text, use python -m inference generate."
    )


def check_candidates(name: str, s: ResolvedFlags) -> str | None:
    if s["infer_generated_samples"] > 1 or not s.is_set(name):
        return None
    return f"{s.label(name)} has no effect with --infer_generated_samples 1: remove it, or ask for more."


check_sampling_technique, check_sample_distances = (
    rule("infer_generated_samples", name)(partial(check_candidates, name))
    for name in ("infer_energy_sampling_technique", "infer_debug_sample_distances")
)


@rule("infer_ebt_override_alpha", "infer_alpha_final_landscape")
def check_last_landscape_step_size(s: ResolvedFlags) -> str | None:
    if not s["infer_alpha_final_landscape"] or s["infer_ebt_override_alpha"] is not None:
        return None
    name = s.label("infer_alpha_final_landscape")
    return f"{name} has no effect without --infer_ebt_override_alpha: remove it, or give one."


@rule("debug_dataloader", "find_lr", "find_batch_size", "only_test")
def check_one_tool(s: ResolvedFlags) -> str | None:
    tools = [f"--{name}" for name in ("debug_dataloader", "find_lr", "find_batch_size", "only_test") if s[name]]
    if len(tools) < 2 or tools == ["--find_lr", "--find_batch_size"]:
        return None
    return f"{join_words(tools, 'and')} are given together: each does its own work instead of training; keep one."


@rule("val_check_interval", "check_val_every_n_epoch")
def check_validation_interval(s: ResolvedFlags) -> str | None:
    if s["check_val_every_n_epoch"] is None or not s.is_set("val_check_interval"):
        return None
    return f"{s.label('val_check_interval')} has no effect with --check_val_every_n_epoch: remove one of them."


@rule("goal", "early_stop", "limit_val_batches")
def check_early_end(s: ResolvedFlags) -> str | None:
    if s["limit_val_batches"] != 0:
        return None
    for name in ("goal", "early_stop"):
        if s[name] and s.is_set(name):
            return f"{s.label(name)} has no effect with --limit_val_batches 0: remove one of them."
    return None


def watched_metrics(s: ResolvedFlags) -> dict[str, str]:
    """{flag: column} of the flags that name a column of validations."""
    watched = {"goal": Goal.parse(s["goal"]).metric} if s["goal"] else {}
    is_old = s.origin == RECORD and s.sources["checkpoint_monitor_string"] == "file" and not s["early_stop"]
    if not is_old:  # an old run without a best checkpoint can still be read
        watched["checkpoint_monitor_string"] = s["checkpoint_monitor_string"]
    return watched


def unmeasured(s: ResolvedFlags, name: str, metric: str) -> str:
    columns = [f"valid_{measure.name.replace('*', '1')}" for measure in s.measures]
    return (
        f"{s.label(name)} is {quoted(s[name])}: a validation of --model_name {s['model_name']} "
        f"does not measure {metric}; choose {join_words(columns)}."
    )


@rule("model_name", "goal", "early_stop", "checkpoint_monitor_string")
def check_watched_metrics(s: ResolvedFlags) -> str | None:
    for name, metric in watched_metrics(s).items():
        if not metric.startswith("valid_") or measure_of(metric, s.measures) is None:
            return unmeasured(s, name, metric)
    return None


@rule("checkpoint_monitor_string", "checkpoint_monitor_mode")
def check_monitor_mode(s: ResolvedFlags) -> str | None:
    watched = s["checkpoint_monitor_string"]
    measure = measure_of(watched, s.measures)
    is_max = measure is not None and measure.better == "higher"
    if not is_max or s["checkpoint_monitor_mode"] == "max" or s.origin == RECORD:
        return None
    name = s.label("checkpoint_monitor_string")
    return f"{name} is {quoted(watched)}, which is better when larger: add --checkpoint_monitor_mode max."


@rule("prefetch_factor", "num_workers", "debug_dataloader")
def check_prefetching(s: ResolvedFlags) -> str | None:
    if not s.is_set("prefetch_factor") or s["num_workers"] > 0 or s["debug_dataloader"]:
        return None
    return f"{s.label('prefetch_factor')} has no effect with --num_workers 0: remove it, or give --num_workers."


@rule("seed", "is_random_seed")
def check_one_seed(s: ResolvedFlags) -> str | None:
    # the record of a run holds the seed that was drawn beside is_random_seed, so only a command line is judged
    if not s["is_random_seed"] or {s.sources["seed"], s.sources["is_random_seed"]} != {"command line"}:
        return None
    return "--seed has no effect with --is_random_seed: remove one of them."


@rule("model_size", *SIZE_TABLE_FLAGS)
def check_size_overruled(s: ResolvedFlags) -> str | None:
    return overruled_by_file(s, "model_size", [name for name in s.values if name in SIZE_TABLE_FLAGS])


def overruled_by_file(s: ResolvedFlags, name: str, stands_for: Sequence[str]) -> str | None:
    """The problem of a typed flag `name` whose values the file, perhaps a saved record, all sets otherwise."""
    overruled = [flag for flag in stands_for if s.sources[flag] == "file" and s[flag] != s.defaults[flag]]
    left = [flag for flag in stands_for if s.sources[flag] not in ("file", "command line")]
    if s.sources[name] != "command line" or not overruled or left:
        return None
    names = join_words(overruled, "and")
    return f"--{name} {s[name]} has no effect with {s.origin}, which sets {names}: remove one of them."


def recipe_rule(task: TaskFacts, flags: Mapping[str, Flag]) -> Rule:
    """A typed --recipe must not be wholly overruled by a file."""
    names = {name for values in task.recipes.values() for name in values}
    ordered = tuple(name for name in flags if name in names)
    return rule("recipe", *ordered)(lambda s: overruled_by_file(s, "recipe", ordered))


CHECKS: tuple[Rule, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Rule))
