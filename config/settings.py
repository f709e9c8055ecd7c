"""Every setting of a run: one frozen dataclass per concern, one field per flag.

A field is a flag of the same name. Its default, one-line help and allowed values stand here and nowhere else;
`parser.py` turns the fields into argparse groups and `checks.py` judges the values together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FROM_SIZE = "size table"  # default of a field that --model_size fills in


def flag(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    words: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    needs: dict[str, tuple[Any, ...]] | None = None,
    metavar: str | None = None,
    lines: bool = False,
) -> Any:
    """A dataclass field that is also a flag.

    choices: the only texts allowed. low, high: inclusive bounds; above: exclusive lower bound.
    words: texts allowed besides a number ("auto"). aliases: other spellings of the same flag.
    needs: {other flag: values} under which this flag has an effect; given without them it is an error.
    lines: a text may have several lines, and tabs.
    """
    return field(
        default=default,
        metadata={
            "help": help,
            "choices": choices,
            "low": low,
            "high": high,
            "above": above,
            "words": words,
            "aliases": aliases,
            "needs": needs or {},
            "metavar": metavar,
            "lines": lines,
        },
    )


EBT = {"model_name": ("ebt",)}
SCALAR = {**EBT, "energy_form": ("scalar",)}
BASELINE = {"model_name": ("baseline_transformer",)}


@dataclass(frozen=True)
class Run:
    """what is trained, and under which name"""

    run_name: str = flag("default", "name of the run; part of its folder's name")
    modality: str = flag("NLP", "kind of data", choices=("NLP",))
    model_name: str = flag("ebt", "which model", choices=("ebt", "baseline_transformer"))
    model_size: str = flag(
        "tiny",
        "layers, width, heads and learning rate from the size table",
        choices=("tiny", "4xs", "3xs", "2xs", "xxs", "xs", "small", "medium", "large", "xl"),
    )
    execution_mode: str = flag(
        "pretrain",
        "from scratch, from the weights of a checkpoint, or only use one",
        choices=("pretrain", "finetune", "inference"),
    )
    recipe: str = flag(
        "residual",
        "a tried set of energy flags",
        choices=("residual", "laptop", "public", "s1", "s2"),
        needs=EBT,
    )
    is_slurm_run: bool = flag(False, "accepted for public job scripts: a Slurm job is recognised by itself")
    override_slurm_checks: bool = flag(False, "accepted for public job scripts: it has nothing to override here")
    config: str | None = flag(None, "YAML or JSON file of settings; the command line wins", metavar="FILE")


@dataclass(frozen=True)
class Architecture:
    """the shape of the model"""

    context_length: int = flag(64, "tokens of context, S", low=1)
    num_transformer_blocks: int = flag(FROM_SIZE, "layers, L", low=1, aliases=("override_transformer_blocks",))
    multiheaded_attention_heads: int = flag(FROM_SIZE, "attention heads, H", low=1)
    embedding_dim: int = flag(FROM_SIZE, "model width, D", low=2, aliases=("override_embedding_dim",))
    ffn_dim_multiplier: float = flag(1.0, "feed-forward width as a multiple of D", above=0)
    weight_initialization_method: str = flag("xavier", "how linear layers start", choices=("xavier", "he"))
    weight_initialization_gain: float = flag(1.0, "factor on the initial weights", above=0)
    tie_embeddings: bool = flag(True, "share the weights of the token embedding and the output head", needs=BASELINE)
    isolate_documents: bool = flag(True, "tokens attend only within their own document of a packed row")
    gradient_checkpointing: bool = flag(
        False, "recompute activations in the backward pass: less memory, more time", needs=BASELINE
    )


@dataclass(frozen=True)
class Energy:
    """how an energy-based model finds its predictions"""

    energy_form: str = flag(
        "residual",
        "as published, or a correction of a Transformer++",
        choices=("scalar", "residual"),
        needs=EBT,
    )
    energy_blocks: int = flag(
        1,
        "blocks of a residual energy's own, behind the others, which predictions pass",
        low=1,
        needs={**EBT, "energy_form": ("residual",)},
    )
    ebt_type: str = flag(
        "default",
        "whether and how the energy knows the step",
        choices=("default", "time_embed", "adaln", "adaln_zero"),
        needs=EBT,
    )
    mcmc_num_steps: int = flag(1, "landscapes, N: steps down the energy where none is repeated", low=1, needs=EBT)
    mcmc_step_size: float | str = flag(
        "auto",
        "length of a step; a number means --recipe public",
        above=0,
        words=("auto",),
        needs=EBT,
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
    randomize_mcmc_num_steps_min: int = flag(0, "fewest repeats drawn; 0 is 1", low=0, needs=EBT)
    randomize_mcmc_num_steps_final_landscape: bool = flag(False, "repeat the last landscape only", needs=EBT)
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
    langevin_dynamics_noise: float = flag(0.0, "Langevin noise, added before each step", low=0, needs=EBT)
    langevin_dynamics_noise_learnable: bool = flag(False, "learn the Langevin noise", needs=EBT)
    no_langevin_during_eval: bool = flag(False, "no Langevin noise in evaluation", needs=EBT)
    no_mcmc_detach: bool = flag(True, "let gradients pass from a step to the one before", needs=EBT)
    truncate_mcmc: bool = flag(
        False,
        "loss of the last step, earlier gradients are constants",
        needs=EBT,
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
    contrastive_loss: bool = flag(False, "also push the true token's energy below that before the last step", needs=EBT)
    contrastive_loss_coeff: float = flag(
        0.1, "weight of the contrastive loss", above=0, needs={**EBT, "contrastive_loss": (True,)}
    )
    reconstruction_coeff: float = flag(
        1.0,
        "weight of the cross-entropy beside the contrastive loss",
        low=0,
        needs={**EBT, "contrastive_loss": (True,)},
    )
    ebt_norm: str = flag("rms", "normalisation", choices=("rms", "layer", "none", "dyt"), needs=EBT)
    ebt_act_func: str = flag("silu", "activation of the gate", choices=("silu", "gelu", "relu", "elu"), needs=EBT)


@dataclass(frozen=True)
class Data:
    """what it learns from"""

    dataset_name: str = flag("pydocs", "registered dataset; NAME:PART for a part of it")
    dataset_dir: str | None = flag(None, "local file, folder or glob to read instead of the hub", metavar="PATH")
    text_field: str = flag("text", "field that holds the text in jsonl, csv, parquet and arrow files")
    max_documents: int = flag(0, "read at most so many documents; 0 is all", low=0)
    tokenizer: str = flag("bytes", "bytes, bpe:SIZE, or a Hugging Face name or folder")
    pretokenize_dataset: bool = flag(True, "keep the tokens in a cache on disk, shared between runs")
    num_workers: int = flag(0, "loader processes; 0 loads in the training process", low=0)
    prefetch_factor: int = flag(2, "batches each loader process keeps ready", low=1)
    validation_split_pct: float = flag(0.05, "share of the documents for validation", low=0, high=0.9)
    test_split_pct: float = flag(0.05, "share of the documents for the test", low=0, high=0.9)
    no_shuffle: bool = flag(False, "read the training rows in order; for debugging")
    no_randomness_dataloader: bool = flag(False, "the same order of batches whatever the seed")


@dataclass(frozen=True)
class Optimizer:
    """how the weights move"""

    peak_learning_rate: float = flag(FROM_SIZE, "learning rate after warm-up", above=0)
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

    max_steps: int = flag(1450, "optimizer steps", low=1)
    max_epochs: int | None = flag(None, "stop after so many passes over the data, if that is earlier", low=1)
    goal: str | None = flag(
        None,
        "stop when a validation reaches it: 'valid_loss<1.4'; exit status 3 if none does",
        metavar="METRIC<VALUE",
        needs={"only_test": (False,), "execution_mode": ("pretrain", "finetune")},
    )
    early_stop: int = flag(
        0,
        "stop after so many validations that were not better than the best; 0 is never",
        low=0,
        needs={"only_test": (False,), "execution_mode": ("pretrain", "finetune")},
    )
    batch_size_per_device: int = flag(16, "rows per device and step", low=1)
    accumulate_grad_batches: int = flag(1, "batches per optimizer step", low=1)
    gradient_clip_val: float = flag(1.0, "largest gradient norm; 0 is no clipping", low=0)
    gpus: str = flag("auto", "auto, -1 (all), a number, a list 0,2, or none")
    allow_idle_gpus: bool = flag(False, "train though a node's job has more GPUs than processes")
    hang_minutes: float | None = flag(None, "minutes without a sign of life that end it; 0: never [20 or more]", low=0)
    cpu_processes: int = flag(1, "processes when there is no GPU", low=1, needs={"gpus": ("auto", "none")})
    distributed_strategy: str = flag("auto", "Lightning strategy: auto or ddp")
    val_check_interval: float | None = flag(
        None, "validate every so many batches (up to 1: share of an epoch); else ten times", above=0
    )
    check_val_every_n_epoch: int | None = flag(None, "validate every n epochs instead", low=1)
    val_sanity: int = flag(-1, "validation batches before the first step; -1 is all", low=-1)
    seed: int = flag(0, "seed of weights, order and noise", low=0)
    is_random_seed: bool = flag(False, "draw the seed at random; it is recorded")
    deterministic: bool = flag(False, "only deterministic algorithms")
    set_matmul_precision: str = flag("high", "float32 matrix products on a GPU", choices=("medium", "high", "highest"))
    float_precision: str = flag("32", "numbers in forward and backward", choices=("32", "bf16", "16"))
    compile_model: bool = flag(False, "compile with torch.compile: a minute first; steps are a tenth shorter on a CPU")


@dataclass(frozen=True)
class Checkpoint:
    """what survives"""

    resume_training_ckpt: str | None = flag(
        None,
        "go on from a checkpoint: a path, last of this run_name, or last_or_new: or begin",
        metavar="PATH|last",
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
        "if the loss spikes or the energy keeps rising: say so, or go back",
        choices=("off", "warn", "rollback"),
    )
    divergence_deviations: float = flag(
        8.0,
        "a spike is so many deviations over the running mean",
        above=0,
        needs={"divergence_guard": ("warn", "rollback")},
    )
    divergence_tries: int = flag(
        3, "times to go back before the run stops", low=1, needs={"divergence_guard": ("rollback",)}
    )
    divergence_step_size_factor: float = flag(
        1.0,
        "factor on the step size when it goes back",
        above=0,
        high=1,
        needs={**EBT, "divergence_guard": ("rollback",)},
    )


@dataclass(frozen=True)
class Logging:
    """what is written down"""

    logs_dir: str = flag("logs", "folder of all runs", metavar="PATH")
    log_every_n_steps: int = flag(10, "steps between rows of metrics", low=1)
    log_gradients: bool = flag(False, "log the gradient norm of every layer")
    log_model_archi: bool = flag(False, "print the model's modules and sizes")
    console_log_filename: str = flag("console.log", "name of the copy of all output in the run folder")
    notify: str | None = flag(
        None,
        "tell of end, failure, alarms and a goal met; $EBT_NOTIFY does so for all runs",
        metavar="COMMAND|URL",
    )
    no_wandb: bool = flag(False, "do not use Weights & Biases")
    wandb_entity: str | None = flag(None, "W&B team or user")
    wandb_project: str = flag("ebt", "W&B project")
    wandb_tags: tuple[str, ...] = flag((), "W&B tags")
    wandb_offline: bool = flag(False, "keep W&B's files here, to upload later: python -m runs sync")
    wandb_watch: bool = flag(False, "histograms of parameters and gradients in W&B")
    wandb_watch_log_freq: int = flag(100, "steps between those histograms", low=1, needs={"wandb_watch": (True,)})
    wandb_checkpoints: str = flag(
        "none", "checkpoints that W&B gets at the end", choices=("none", "best", "last", "both")
    )


@dataclass(frozen=True)
class Debugging:
    """find a problem in a minute"""

    print_config: bool = flag(False, "show every setting and where it came from, and exit")
    plan: bool = flag(False, "show parameters, FLOPs, memory, tokens and time of this run, and exit")
    debug_dataloader: bool = flag(False, "look through the data: speed, faults, leaks; train nothing")
    find_lr: bool = flag(False, "learning rate range test with a plot; train nothing")
    find_batch_size: bool = flag(False, "largest batch that fits and the speed of each; train nothing")
    fast_dev_run: bool = flag(False, "one batch of training, validation and test")
    debug_mode: bool = flag(False, "a one-minute rehearsal: 20 batches, all checks on, no W&B")
    overfit_batches: float = flag(0, "train on so many fixed batches (or share) until the loss is near zero", low=0)
    limit_train_batches: float = flag(1.0, "1: all; below: share; above: number of batches an epoch", above=0)
    limit_val_batches: float | None = flag(
        None, "1: all; below: share; above: batches; 0: none; left out: a sample, all at the end", low=0
    )
    limit_test_batches: float = flag(1.0, "1: all; below: share; above: number of test batches; 0 is none", low=0)
    detect_anomaly: bool = flag(False, "name the module and step of the first NaN or Inf, save its batch")
    debug_unused_parameters: bool = flag(False, "list parameters that got no gradient")
    find_unused_parameters: bool = flag(False, "let DDP accept parameters without gradient")
    profiler: str | None = flag(
        None, "where the time goes, into the run folder", choices=("simple", "advanced", "pytorch")
    )
    manual_gc_collect_every_n_steps: int = flag(0, "collect garbage only then; 0 leaves it to Python", low=0)


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
    )


INFERENCE = {"execution_mode": ("inference",)}


@dataclass(frozen=True)
class Inference:
    """how a trained model is used"""

    infer_max_gen_len: int = flag(200, "tokens to generate at most", low=1, needs=INFERENCE)
    infer_temp: float = flag(0.8, "temperature; 0 takes the likeliest token", low=0, needs=INFERENCE)
    infer_topp: float = flag(
        1.0, "draw from the likeliest tokens that have this share", above=0, high=1, needs=INFERENCE
    )
    infer_topk: int = flag(0, "draw from so many of the likeliest tokens; 0 is all", low=0, needs=INFERENCE)
    infer_logprobs: bool = flag(False, "also give the log-probability of each token", needs=INFERENCE)
    infer_echo: bool = flag(False, "give the prompt before what follows it", needs=INFERENCE)
    infer_output_dir: str | None = flag(
        None, "folder for files; default: the run's own", metavar="PATH", needs=INFERENCE
    )
    infer_ebt_advanced: bool = flag(False, "accepted for old scripts: the flags below need no leave", needs=INFERENCE)
    infer_ebt_num_steps: int | None = flag(
        None,
        "steps at most, per landscape where --ebt_type has them; default: as in evaluation",
        low=1,
        needs=INFERENCE,
    )
    infer_ebt_override_alpha: float | None = flag(
        None, "below 1 a factor on the learned step size, from 1 on a step size", above=0, needs=INFERENCE
    )
    infer_ebt_stop_change: float = flag(
        0.0, "a position is done when a step changes its energy by less; 0 is never", low=0, needs=INFERENCE
    )
    infer_generated_samples: int = flag(1, "candidates for each token, G", low=1, high=64, needs=INFERENCE)
    infer_energy_sampling_technique: str = flag(
        "min",
        "believe the candidate of least energy, of the largest fall, or of most",
        choices=("min", "max_gap", "max"),
        needs=INFERENCE,
    )
    infer_langevin_dynamics_noise: float | None = flag(
        None, "noise added before each step; default: as in evaluation", low=0, needs=INFERENCE
    )
    infer_langevin_first_step: bool = flag(False, "noise before the first step only", needs=INFERENCE)
    infer_accept_lower_energies: bool = flag(
        False, "take back a step that raises the energy; the next is half as long", needs=INFERENCE
    )
    infer_steps_final_landscape: bool = flag(
        False, "--infer_ebt_num_steps on the last landscape only, one step on the others", needs=INFERENCE
    )
    infer_alpha_final_landscape: bool = flag(
        False,
        "--infer_ebt_override_alpha on the last landscape only",
        needs=INFERENCE,
    )
    infer_debug_sample_distances: bool = flag(False, "show how far apart the candidates end", needs=INFERENCE)
    infer_plot_energy_landscape: bool = flag(False, "draw the energy around one prediction", needs=INFERENCE)


@dataclass(frozen=True)
class RunConfig:
    """All settings of one run; `sources` says where each value came from."""

    run: Run = Run()
    architecture: Architecture = Architecture()
    energy: Energy = Energy()
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    trainer: Trainer = Trainer()
    checkpoint: Checkpoint = Checkpoint()
    logging: Logging = Logging()
    debugging: Debugging = Debugging()
    testing: Testing = Testing()
    inference: Inference = Inference()
    sources: dict[str, str] = field(default_factory=dict, compare=False)
    changed: dict[str, str] = field(default_factory=dict, compare=False)  # flags of an old record: see versions.py
