"""Names that are not flags, and what to use instead: retired ones, those of other projects, and typing mistakes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from .flags import Flag

# fmt: off
RETIRED = frozenset((
    "absolute_clamp", "clamp_futures_grad", "clamp_futures_grad_max_change", "clamp_max_after_warm_up",
    "create_model_viz", "crop_all_samples", "debug_log_filename", "discrete_contrastive_loss_true_logit_val",
    "dyt_alpha_init", "embeddings_distance_fn", "energy_loss_coeff", "energy_loss_fn", "energy_loss_hinge",
    "ffprobe_path", "lars_exclude_bias_bn_wd", "lars_trust_coeff", "learnable_process_memory", "mlp_dim_multiplier",
    "mlp_dropout", "mlp_hidden_layers", "mlp_layer_norm", "normalize_initial_condition_only_first_step",
    "num_modality_processing_mlp_layers", "out_of_bounds_loss_coeff", "preprocess_data", "print_logs",
    "process_memory_linear_layer", "process_memory_type", "scale_cosine_sim_decay", "sharpen_predicted_distribution",
    "soften_target_prob_dist",
))
# What other projects call a flag of ours: a message names ours, none of these is a flag itself.
FOREIGN_NAMES = {
    "run_name": "name exp exp_name experiment experiment_name wandb_name wandb_run_name job_name",
    "model_name": "model arch model_type",
    "model_size": "size",
    "config": "cfg config_file",
    "context_length": "context ctx ctx_len seq_len seq_length sequence_length block_size max_length max_seq_len",
    "num_transformer_blocks": "layers num_layers n_layer n_layers depth blocks num_hidden_layers",
    "multiheaded_attention_heads": "heads num_heads n_head n_heads num_attention_heads",
    "embedding_dim": "dim d_model width n_embd embed_dim hidden_dim hidden_size",
    "mcmc_step_size": "alpha step_size",
    "dataset_name": "dataset data",
    "dataset_dir": "data_dir data_path dataset_path train_file",
    "num_workers": "workers n_workers dataloader_num_workers",
    "peak_learning_rate": "lr learning_rate max_lr base_lr peak_lr",
    "optimizer": "optim opt",
    "weight_decay": "wd",
    "beta1": "adam_beta1 betas",
    "beta2": "adam_beta2",
    "lr_schedule": "schedule scheduler lr_scheduler lr_scheduler_type lr_decay",
    "min_lr_scale": "min_lr final_lr",
    "warm_up_steps": "warmup warmup_steps warmup_iters num_warmup_steps warmup_ratio",
    "max_steps": "steps num_steps n_steps iters max_iters iterations total_steps train_steps num_train_steps",
    "max_epochs": "epochs epoch num_epochs n_epochs num_train_epochs",
    "early_stop": "patience early_stopping",
    "batch_size_per_device":
        "bs batch batch_size batchsize train_batch_size per_device_train_batch_size micro_batch_size",
    "accumulate_grad_batches": "accum grad_accum accumulate accumulation_steps gradient_accumulation_steps",
    "gradient_clip_val": "clip grad_clip clip_grad clip_grad_norm max_grad_norm gradient_clip gradient_clipping",
    "gpus": "gpu device devices num_gpus n_gpus cuda",
    "distributed_strategy": "strategy ddp fsdp",
    "val_check_interval": "eval_interval eval_every eval_steps val_every val_interval validate_every",
    "seed": "random_seed manual_seed",
    "float_precision": "precision dtype amp fp16 bf16 mixed_precision",
    "compile_model": "compile torch_compile",
    "resume_training_ckpt": "resume resume_from resume_from_checkpoint ckpt ckpt_path checkpoint load",
    "checkpoint_every_n_steps": "save_every save_steps save_interval checkpoint_every ckpt_interval",
    "save_top_k_ckpts": "save_top_k save_total_limit",
    "logs_dir": "log_dir logdir out_dir output_dir save_dir outdir",
    "log_every_n_steps": "log_every log_interval log_steps logging_steps",
    "notify": "notification webhook hook slack mail",
    "wandb_project": "project project_name",
    "wandb_entity": "entity",
    "wandb_tags": "tags",
    "wandb_offline": "offline",
    "debug_mode": "debug",
    "fast_dev_run": "dry_run",
    "profiler": "profile",
    "only_test": "test eval eval_only test_only",
    "infer_max_gen_len": "max_new_tokens max_tokens max_gen_len",
    "infer_temp": "temperature temp",
    "infer_topp": "top_p topp",
    "infer_topk": "top_k topk",
}
# fmt: on
FLAG_BY_NAME = {word: name for name, words in FOREIGN_NAMES.items() for word in words.split()}


def unknown_name(name: str, options: Mapping[str, Flag | None], subject: str, wrong: set[str]) -> str:
    """The problem of a name that is no flag, with the option that was probably intended.

    options: the valid spellings, with their flag where they have one. subject: the name in the message. The flag that
    is suggested is added to `wrong`, so that its absence is not reported as well.
    """
    plain = normalized(name)
    if {plain, plain.removeprefix("no_")} & RETIRED:
        return f"{subject} is retired: it was tried by its authors and abandoned; remove it."
    spellings = {normalized(spelling): spelling for spelling in reversed(list(options))}
    completions = [spelling for spelling in spellings if len(plain) > 2 and spelling.startswith(plain + "_")]
    ours = FLAG_BY_NAME.get(plain)
    near = [ours] if ours in spellings else completions or difflib.get_close_matches(plain, spellings, n=1)
    if not near:
        return f"{subject} is unknown: --help lists every flag."
    suggestion = spellings[near[0]]
    if flag := options[suggestion]:
        wrong.add(flag.name)
    return f"{subject} is unknown: did you mean {suggestion}?"


def normalized(spelling: str) -> str:
    """A spelling without what people vary: dashes, underscores, capitals."""
    return spelling.removeprefix("--").replace("-", "_").lower()
