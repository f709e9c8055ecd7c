"""Settings of a run: one frozen dataclass per concern, one field per flag; the size table and the debug presets.

A field is a flag of the same name. Its default, one-line help and allowed values stand here and nowhere else;
task_flags.py says which flags a task has, parser.py parses them and checks.py checks the values together. Groups that
every run has are attributes of RunConfig; groups of a task are addressed by their type:
`config[Transformer].context_length`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar, get_type_hints

from .flags import FROM_SIZE, NUMBER, flag, section_of
from .task import DEFAULT_TASK, Goal

Group = TypeVar("Group")


@dataclass(frozen=True)
class Size:
    """One row of the size table; its fields are the flags that it fills in."""

    num_transformer_blocks: int
    embedding_dim: int
    multiheaded_attention_heads: int
    peak_learning_rate: float


SIZES = {
    "tiny": Size(4, 96, 2, 0.0024),  # ours, for a CPU: deeper and narrower than 4xs (docs/log.md)
    "5xs": Size(2, 64, 4, 0.004),  # ours, for puzzles of some dozens of cells
    "4xs": Size(2, 128, 2, 0.0024),
    "3xs": Size(4, 256, 4, 0.0018),
    "2xs": Size(6, 384, 6, 0.0012),
    "xxs": Size(6, 384, 6, 0.0012),
    "xs": Size(12, 384, 6, 0.0009),
    "small": Size(12, 768, 12, 0.0006),
    "medium": Size(24, 1024, 16, 0.0003),
    "large": Size(24, 1536, 16, 0.00025),
    "xl": Size(24, 2048, 32, 0.0002),
}
SIZE_TABLE_FLAGS = tuple(column.name for column in fields(Size))
# What a debug switch sets, unless it is given too.
DEBUG_PRESETS: dict[str, dict[str, Any]] = {
    "debug_mode": {
        "max_steps": 20,
        "limit_val_batches": 5.0,
        "val_sanity": 2,
        "log_every_n_steps": 1,
        "checkpoint_every_n_steps": 10,
        "num_workers": 0,
        "no_wandb": True,
        "detect_anomaly": True,
        "debug_unused_parameters": True,
    },
    "fast_dev_run": {
        "max_steps": 1,
        "val_sanity": 0,
        "log_every_n_steps": 1,
        "no_wandb": True,
        "run_testing_after_training": True,
    },
    "overfit_batches": {"val_sanity": 0},
}


def check_file_name(name: str) -> str | None:
    if "/" in name or name in (".", ".."):
        return "it becomes part of a file's name; leave out '/', and do not use '.' or '..'"
    if len(name) > 100 or len(name.encode("utf-8", "replace")) > 200:
        return "it becomes part of a file's name; use 1 to 100 characters (200 bytes)"
    return None


def check_share_or_count(number: float) -> str | None:
    if number <= 1 or number.is_integer():
        return None
    return "above 1 it is a number of batches; give a whole number, or a share of at most 1"


def check_gpus(text: str) -> str | None:
    if text in ("auto", "none", "-1"):
        return None
    if text == "0":
        return "choose none to train without a GPU, or a number of GPUs from 1 on"
    if not re.fullmatch(r"[1-9][0-9]{0,4}|[0-9]{1,5}(,[0-9]{1,5})+", text):
        return "choose auto, none, -1 (all), a number of GPUs, or a list of them such as 0,2"
    numbers = [int(number) for number in text.split(",")]
    return None if len(set(numbers)) == len(numbers) else "name each GPU once"


def check_tokenizer(text: str) -> str | None:
    if text.partition(":")[0] != "bpe":
        return None
    if re.fullmatch(r"bpe:[0-9]{1,9}", text) and int(text[4:]) >= 300:
        return None
    return "write bpe:SIZE with a whole number of at least 300, such as bpe:4096"


def check_goal(text: str) -> str | None:
    try:
        Goal.parse(text)
    except ValueError as error:
        return str(error)
    return None


def check_match_flops(text: str) -> str | None:
    if not NUMBER.fullmatch(text) or 0 < float(text) < float("inf"):
        return None
    return "give a number of FLOPs above 0, such as 2.8e12, or the name of a run"


def check_wandb_project(name: str) -> str | None:
    if len(name) <= 128 and not re.search(r"[/\\#?%:]", name):
        return None
    return "W&B takes at most 128 characters, and none of / \\ # ? % :"


def check_wandb_tags(tags: tuple[str, ...]) -> str | None:
    return "W&B takes tags of at most 64 characters" if any(len(tag) > 64 for tag in tags) else None


def check_strategy(name: str) -> str | None:
    if name in ("auto", "ddp", "ddp_find_unused_parameters_true"):
        return None
    if name.startswith("fsdp"):
        return (
            "sharded training is not built yet (the step size has no dimension to shard, and clipping would see a part "
            "of the gradient); choose ddp"
        )
    return "choose auto or ddp"


def check_seed(seed: int) -> str | None:
    return None if seed < 2**32 else "give a whole number from 0 to 4294967295"


EBT = {"model_name": ("ebt",)}
LOOPED = {"model_name": ("looped_transformer",)}
NO_ENERGY = {"model_name": ("baseline_transformer", "looped_transformer")}


@dataclass(frozen=True)
class Run:
    """what is trained, and under which name"""

    run_name: str = flag(
        "default", "name of the run; part of its folder's name", affects="record", check=check_file_name
    )
    task: str = flag(
        DEFAULT_TASK,
        "what is learned: a module of tasks/, or any module that has a TASK",
        metavar="NAME",
        of_model=True,
        of_shape=True,
    )
    modality: str | None = flag(
        "NLP",
        "kind of data, as older scripts name the task",
        choices=("NLP", "IMG", "VID"),
        of_model=True,
        of_shape=True,
    )
    image_task: str | None = flag(
        None, "task of --modality IMG, as older scripts name it", of_model=True, of_shape=True
    )
    model_name: str = flag(
        "ebt", "which model", shown_first=1, of_model=True, of_shape=True
    )  # the task has the choices, the first is the default
    model_size: str = flag(
        "tiny",
        "layers, width, heads and learning rate from the size table",
        choices=("tiny", "5xs", "4xs", "3xs", "2xs", "xxs", "xs", "small", "medium", "large", "xl"),
        shown_first=1,
        of_model=True,
        of_shape=True,
    )
    execution_mode: str = flag(
        "pretrain",
        "from scratch, from the weights of a checkpoint, or only use one",
        choices=("pretrain", "finetune", "inference"),
        changeable=True,
    )
    recipe: str | None = flag(
        None, "a tried set of flags", needs=EBT, shown_first=1, of_model=True
    )  # the task has the choices
    is_slurm_run: bool = flag(
        False, "accepted for public job scripts: a Slurm job is recognised by itself", affects="record"
    )
    override_slurm_checks: bool = flag(
        False, "accepted for public job scripts: it has nothing to override here", affects="record"
    )
    config: str | None = flag(
        None, "YAML or JSON file of settings; the command line wins", metavar="FILE", affects="record"
    )


@dataclass(frozen=True)
class Blocks:
    """the shape of the model"""

    section: ClassVar[str] = "architecture"

    num_transformer_blocks: int = flag(
        FROM_SIZE, "layers, L", low=1, aliases=("override_transformer_blocks",), of_shape=True
    )
    multiheaded_attention_heads: int = flag(FROM_SIZE, "attention heads, H", low=1, of_shape=True)
    embedding_dim: int = flag(FROM_SIZE, "model width, D", low=2, aliases=("override_embedding_dim",), of_shape=True)
    ffn_dim_multiplier: float = flag(1.0, "feed-forward width as a multiple of D", above=0)
    weight_initialization_method: str = flag("xavier", "how linear layers start", choices=("xavier", "he"))
    weight_initialization_gain: float = flag(1.0, "factor on the initial weights", above=0)


@dataclass(frozen=True)
class Transformer(Blocks):
    __doc__ = Blocks.__doc__

    context_length: int = flag(64, "tokens of context, S", low=1, shown_first=2, decides="row")
    tie_embeddings: bool = flag(True, "share the weights of the token embedding and the output head", needs=NO_ENERGY)
    isolate_documents: bool = flag(True, "tokens attend only within their own document of a packed row")
    gradient_checkpointing: bool = flag(
        False,
        "recompute activations in the backward pass: less memory, more time",
        needs=NO_ENERGY,
        affects="speed",
    )


@dataclass(frozen=True)
class Loops:
    """how often a looped transformer repeats its blocks"""

    loops_min: int = flag(2, "fewest loops of a training batch", low=1, needs=LOOPED, shown_first=2)
    loops_max: int = flag(
        4, "most loops of a training batch; their number is drawn", low=1, needs=LOOPED, shown_first=2
    )


@dataclass(frozen=True)
class Data:
    """what it learns from"""

    section: ClassVar[str] = "data"

    dataset_name: str = flag("pydocs", "registered dataset; NAME:PART for a part of it", shown_first=1, decides="data")
    dataset_dir: str | None = flag(
        None, "local file, folder or glob to read instead of the hub", metavar="PATH", changeable=True, decides="data"
    )
    num_workers: int = flag(0, "loader processes; 0 loads in the training process", low=0, affects="speed")
    prefetch_factor: int = flag(2, "batches each loader process keeps ready", low=1, affects="speed")
    no_shuffle: bool = flag(False, "read the training rows in order; for debugging")
    no_randomness_dataloader: bool = flag(False, "the same order of batches whatever the seed")


@dataclass(frozen=True)
class SplitByShare(Data):
    __doc__ = Data.__doc__

    validation_split_pct: float = flag(0.05, "share of the documents for validation", low=0, high=0.9, decides="data")
    test_split_pct: float = flag(0.05, "share of the documents for the test", low=0, high=0.9, decides="data")


@dataclass(frozen=True)
class Text(SplitByShare):
    __doc__ = Data.__doc__

    text_field: str = flag("text", "field that holds the text in jsonl, csv, parquet and arrow files", decides="data")
    max_documents: int = flag(0, "read at most so many documents; 0 is all", low=0, decides="data")
    tokenizer: str = flag(
        "bytes",
        "bytes, bpe:SIZE, or a Hugging Face name or folder",
        metavar="NAME|PATH",
        shown_first=2,
        of_model=True,
        of_shape=True,
        decides="unit",
        check=check_tokenizer,
    )
    pretokenize_dataset: bool = flag(True, "keep the tokens in a cache on disk, shared between runs", affects="speed")


@dataclass(frozen=True)
class Optimizer:
    """how the weights are updated"""

    peak_learning_rate: float = flag(FROM_SIZE, "learning rate after warm-up", above=0, shown_first=2)
    optimizer: str = flag("adamw", "which optimizer", choices=("adamw", "adafactor", "sgd"))
    weight_decay: float = flag(0.01, "decay of weight matrices", low=0)
    beta1: float = flag(0.9, "AdamW's first beta", low=0, high=0.9999, needs={"optimizer": ("adamw",)})
    beta2: float = flag(0.999, "AdamW's second beta", low=0, high=0.99999, needs={"optimizer": ("adamw",)})
    lr_schedule: str = flag("cosine", "shape after warm-up", choices=("cosine", "linear", "constant", "one_cycle"))
    min_lr_scale: float = flag(
        10, "the schedule ends at peak / this", low=1, needs={"lr_schedule": ("cosine", "linear", "one_cycle")}
    )
    warm_up_steps: int | None = flag(None, "steps of linear warm-up; default: a tenth of the run", low=0)
    warm_up_base_lr_divider: float = flag(100, "warm-up starts at peak / this", low=1)
    max_scheduling_steps: int | None = flag(None, "steps until the schedule ends; default: max_steps", low=1)
    lr_scaling_rule: bool = flag(False, "scale the learning rate by rows per step / 256")


@dataclass(frozen=True)
class Trainer:
    """how long, on what, in which precision"""

    max_steps: int = flag(1450, "optimizer steps", low=1, changeable=True)
    match_flops: str | None = flag(
        None,
        "choose the steps so that training FLOPs are equal; with --max_steps, the blocks",
        metavar="RUN|NUMBER",
        needs={"only_test": (False,), "execution_mode": ("pretrain", "finetune")},
        changeable=True,
        check=check_match_flops,
    )
    max_epochs: int | None = flag(
        None, "stop after so many passes over the data, if that is earlier", low=1, changeable=True
    )
    goal: str | None = flag(
        None,
        "stop when a validation reaches it: 'valid_loss<1.4'; exit status 3 if none does",
        metavar="METRIC<VALUE",
        needs={"only_test": (False,), "execution_mode": ("pretrain", "finetune")},
        changeable=True,
        check=check_goal,
    )
    early_stop: int = flag(
        0,
        "stop after so many validations that were not better than the best; 0 is never",
        low=0,
        needs={"only_test": (False,), "execution_mode": ("pretrain", "finetune")},
        changeable=True,
    )
    batch_size_per_device: int = flag(16, "rows per device and step", low=1, shown_first=2)
    accumulate_grad_batches: int = flag(1, "batches per optimizer step", low=1)
    gradient_clip_val: float = flag(1.0, "largest gradient norm; 0 is no clipping", low=0)
    gpus: str = flag("auto", "auto, -1 (all), a number, a list 0,2, or none", changeable=True, check=check_gpus)
    allow_idle_gpus: bool = flag(False, "train though a node's job has more GPUs than processes", affects="speed")
    hang_minutes: float | None = flag(
        None, "minutes without a heartbeat that end it; 0: never [20 or more]", low=0, affects="speed"
    )
    cpu_processes: int = flag(
        1, "processes when there is no GPU", low=1, needs={"gpus": ("auto", "none")}, changeable=True
    )
    distributed_strategy: str = flag("auto", "Lightning strategy: auto or ddp", changeable=True, check=check_strategy)
    val_check_interval: float | None = flag(
        None,
        "validate every so many batches (up to 1: share of an epoch); default: ten times",
        above=0,
        changeable=True,
        check=check_share_or_count,
    )
    check_val_every_n_epoch: int | None = flag(None, "validate every n epochs instead", low=1, changeable=True)
    val_sanity: int = flag(-1, "validation batches before the first step; -1 is all", low=-1, changeable=True)
    seed: int = flag(0, "seed of weights, order and noise", low=0, shown_first=2, check=check_seed)
    is_random_seed: bool = flag(False, "draw the seed at random; it is recorded", changeable=True)
    deterministic: bool = flag(False, "only deterministic algorithms", changeable=True)
    set_matmul_precision: str = flag(
        "high", "float32 matrix products on a GPU", choices=("medium", "high", "highest"), changeable=True
    )
    float_precision: str = flag("32", "numbers in forward and backward", choices=("32", "bf16", "16"))
    compile_model: bool = flag(
        False, "torch.compile: takes a minute first; steps are a tenth shorter on a CPU", affects="speed"
    )


@dataclass(frozen=True)
class Checkpoint:
    """what is saved, and what is resumed"""

    resume_training_ckpt: str | None = flag(
        None,
        "resume from a path, or the last of this run_name; last_or_new: or start a run",
        metavar="PATH|last",
        affects="record",
    )
    finetuning_model_ckpt: str | None = flag(
        None, "start from these weights", metavar="PATH", needs={"execution_mode": ("finetune",)}
    )
    checkpoint_every_n_steps: int = flag(100, "steps between checkpoints; 0 saves at the end only", low=0)
    checkpoint_monitor_string: str = flag("valid_loss", "metric that makes a checkpoint the best")
    checkpoint_monitor_mode: str = flag("min", "is the best the smallest or the largest", choices=("min", "max"))
    save_top_k_ckpts: int = flag(1, "how many of the best to keep, besides the newest two", low=0)
    divergence_guard: str = flag(
        "warn",
        "if the loss spikes or the energy keeps rising: warn, or roll back",
        choices=("off", "warn", "rollback"),
    )
    divergence_deviations: float = flag(
        8.0,
        "a spike is so many deviations over the running mean",
        above=0,
        needs={"divergence_guard": ("warn", "rollback")},
    )
    divergence_tries: int = flag(
        3, "times to roll back before the run stops", low=1, needs={"divergence_guard": ("rollback",)}
    )
    divergence_step_size_factor: float = flag(
        1.0,
        "factor on the step size when it rolls back",
        above=0,
        high=1,
        needs={**EBT, "divergence_guard": ("rollback",)},
    )


@dataclass(frozen=True)
class Logging:
    """what is written down"""

    logs_dir: str = flag("logs", "folder of all runs", metavar="PATH", affects="record")
    log_every_n_steps: int = flag(10, "steps between rows of metrics", low=1)
    log_gradients: bool = flag(False, "log the gradient norm of every layer")
    log_model_archi: bool = flag(False, "print the model's modules and sizes", affects="record")
    console_log_filename: str = flag(
        "console.log", "name of the copy of all output in the run folder", affects="record", check=check_file_name
    )
    notify: str | None = flag(
        None,
        "tell of end, failure, alarms and a goal met; $EBT_NOTIFY does so for all runs",
        metavar="COMMAND|URL",
        affects="record",
    )
    no_wandb: bool = flag(False, "do not use Weights & Biases", affects="record")
    wandb_entity: str | None = flag(None, "W&B team or user", affects="record")
    wandb_project: str = flag("ebt", "W&B project", affects="record", check=check_wandb_project)
    wandb_tags: tuple[str, ...] = flag((), "W&B tags", affects="record", check=check_wandb_tags)
    wandb_offline: bool = flag(False, "keep W&B's files here, to upload later: python -m runs sync", affects="record")
    wandb_watch: bool = flag(False, "histograms of parameters and gradients in W&B")
    wandb_watch_log_freq: int = flag(100, "steps between those histograms", low=1, needs={"wandb_watch": (True,)})
    wandb_checkpoints: str = flag(
        "none", "checkpoints that W&B gets at the end", choices=("none", "best", "last", "both")
    )


@dataclass(frozen=True)
class Debugging:
    """find a problem in a minute"""

    print_config: bool = flag(False, "show every setting and where it came from, and exit", affects="record")
    plan: bool = flag(False, "show parameters, FLOPs, memory, tokens and time of this run, and exit", affects="record")
    debug_dataloader: bool = flag(False, "look through the data: speed, faults, leaks; train nothing", affects="record")
    find_lr: bool = flag(False, "learning rate range test with a plot; train nothing", affects="record")
    find_batch_size: bool = flag(
        False, "largest batch that fits and the speed of each; train nothing", affects="record"
    )
    fast_dev_run: bool = flag(False, "one batch of training, validation and test")
    debug_mode: bool = flag(False, "a one-minute trial: 20 batches, all checks on, no W&B")
    overfit_batches: float = flag(
        0, "train on so many fixed batches (or share) until the loss is near zero", low=0, check=check_share_or_count
    )
    limit_train_batches: float = flag(
        1.0, "1: all; below: share; above: number of batches an epoch", above=0, check=check_share_or_count
    )
    limit_val_batches: float | None = flag(
        None,
        "1: all; below: share; above: batches; 0: none; default: a sample, all at the end",
        low=0,
        check=check_share_or_count,
    )
    limit_test_batches: float = flag(
        1.0, "1: all; below: share; above: number of test batches; 0 is none", low=0, check=check_share_or_count
    )
    detect_anomaly: bool = flag(False, "name the module and step of the first NaN or Inf, save its batch")
    debug_unused_parameters: bool = flag(False, "list parameters that got no gradient")
    find_unused_parameters: bool = flag(False, "let DDP accept parameters without gradient", affects="speed")
    profiler: str | None = flag(
        None, "where the time goes, into the run folder", choices=("simple", "advanced", "pytorch")
    )
    manual_gc_collect_every_n_steps: int = flag(
        0, "steps between garbage collections; 0 leaves them to Python", low=0, affects="speed"
    )


@dataclass(frozen=True)
class Testing:
    """the test split, and what to compare with"""

    only_test: bool = flag(False, "evaluate a checkpoint on the test split; train nothing")
    only_test_model_ckpt: str | None = flag(
        None, "the checkpoint to evaluate: a path, or last", metavar="PATH|last", needs={"only_test": (True,)}
    )
    run_testing_after_training: bool = flag(False, "evaluate the test split at the end")
    compare_baseline: bool = flag(
        False,
        "then train its Transformer++, for equal steps and equal FLOPs",
        needs={**EBT, "execution_mode": ("pretrain",), "only_test": (False,)},
        affects="record",
    )


@dataclass(frozen=True)
class Inference:
    """how a trained model is used"""

    infer_max_gen_len: int = flag(200, "tokens to generate at most", low=1)
    infer_temp: float = flag(0.8, "temperature; 0 takes the likeliest token", low=0)
    infer_topp: float = flag(1.0, "draw from the likeliest tokens that have this share", above=0, high=1)
    infer_topk: int = flag(0, "draw from so many of the likeliest tokens; 0 is all", low=0)
    infer_logprobs: bool = flag(False, "also give the log-probability of each token")
    infer_echo: bool = flag(False, "give the prompt before what follows it")
    infer_output_dir: str | None = flag(None, "folder for files; default: the run's own", metavar="PATH")
    infer_ebt_advanced: bool = flag(False, "accepted for public scripts: it has no effect")
    infer_ebt_num_steps: int | None = flag(
        None, "steps at most, per landscape where --ebt_type has them; default: as in evaluation", low=1
    )
    infer_ebt_override_alpha: float | None = flag(
        None, "below 1 a factor on the learned step size, from 1 on a step size", above=0
    )
    infer_ebt_stop_change: float = flag(
        0.0, "a position is done when a step changes its energy by less; 0 is never", low=0
    )
    infer_generated_samples: int = flag(1, "candidates for each token, G", low=1, high=64)
    infer_energy_sampling_technique: str = flag(
        "min",
        "take the candidate of least energy, of the largest drop, or of most energy",
        choices=("min", "max_gap", "max"),
    )
    infer_langevin_dynamics_noise: float | None = flag(
        None, "noise added before each step; default: as in evaluation", low=0
    )
    infer_langevin_first_step: bool = flag(False, "noise before the first step only")
    infer_accept_lower_energies: bool = flag(False, "undo a step that raises the energy; the next is half as long")
    infer_steps_final_landscape: bool = flag(
        False, "--infer_ebt_num_steps on the last landscape only, one step on the others"
    )
    infer_alpha_final_landscape: bool = flag(False, "--infer_ebt_override_alpha on the last landscape only")
    infer_debug_sample_distances: bool = flag(False, "show how far apart the candidates end")
    infer_plot_energy_landscape: bool = flag(False, "draw the energy around one prediction")


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run; `sources` says where each value came from."""

    run: Run = Run()
    data: Data = Data()  # of the class that the task extends it to
    optimizer: Optimizer = Optimizer()
    trainer: Trainer = Trainer()
    checkpoint: Checkpoint = Checkpoint()
    logging: Logging = Logging()
    debugging: Debugging = Debugging()
    testing: Testing = Testing()
    groups: tuple[Any, ...] = ()  # those of the task, and Inference in a run with --execution_mode inference
    sources: dict[str, str] = field(default_factory=dict, compare=False)
    changed: dict[str, str] = field(default_factory=dict, compare=False)  # flags of an old record: see config_file.py

    def __getitem__(self, group: type[Group]) -> Group:
        """The settings of a group: config[Transformer].context_length"""
        for settings in self.sections().values():
            if isinstance(settings, group):
                return settings
        raise KeyError(f"--task {self.run.task} has no flags of the group {group.__name__}")

    def sections(self) -> dict[str, Any]:
        """Every group by its key in config.json."""
        common = {name: getattr(self, name) for name in COMMON}
        own = {section_of(type(group)): group for group in self.groups}
        return {"run": common.pop("run"), **own, **common}

    def with_values(self, values: Mapping[str, Any]) -> RunConfig:
        """The same settings with these values, by flag; they are not checked."""
        groups = {}
        for section, settings in self.sections().items():
            own = {column.name: values[column.name] for column in fields(settings) if column.name in values}
            groups[section] = replace(settings, **own)
        common = {name: groups.pop(name) for name in COMMON}
        return replace(self, **common, groups=tuple(groups.values()))


COMMON: dict[str, type] = {  # groups that every run has
    name: kind for name, kind in get_type_hints(RunConfig).items() if name not in ("groups", "sources", "changed")
}
