"""Language: the next token of a text, with an energy-based transformer or a Transformer++, looped or not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from config.checks import ResolvedFlags
from config.energy import ENERGY_CHECKS, RECIPES, Energy, energy_measures, energy_rule
from config.flags import flag
from config.loops import check_loops, loop_measures
from config.settings import LOOPED, Loops, RunConfig, Text, Transformer
from config.task import Alarm, Measure, Results, SplitFacts
from core.errors import UserError
from tasks import Showing, Task
from tasks.energy import blocks_shape, energy_shape, replay_buffer, walk_settings
from tasks.language_commands import COMMANDS

if TYPE_CHECKING:
    from data.language.build import TextSpec
    from data.language.tokenizers import Tokenizer
    from data.module import DataModule
    from models.language import LanguageModel

LOSS_UNIT = "nats per token"
BITS_PER_BYTE = "bits_per_byte"
CONSTANT_PREDICTIONS = Alarm(
    "constant predictions",
    "spread",
    below=0.02,
    text="predictions hardly depend on the context: over positions their standard deviation is {:.4f} "
    "(of a probability; a model that reads has more than 0.1)",
    advice="check that inputs reach the model (--debug_dataloader, --debug_unused_parameters), raise --mcmc_step_size, "
    "or lower the learning rate: --overfit_batches 1 tells whether it can learn at all",
)


def bits_per_byte(results: Results, facts: SplitFacts) -> float:
    return results["loss"] * facts["tokens_per_byte"] / math.log(2)


@energy_rule("denoising_initial_condition")
def check_start(s: ResolvedFlags) -> str | None:
    if s["denoising_initial_condition"] != "most_recent_embedding":
        return None
    return (
        f"{s.label('denoising_initial_condition')} is 'most_recent_embedding': a language prediction is a "
        "distribution over the vocabulary, and the most recent embedding is not one; choose random_noise or zeros."
    )


@dataclass(frozen=True)
class TokenLoops(Loops):
    __doc__ = Loops.__doc__

    section: ClassVar[str] = "loops"

    evaluation_loops: int | None = flag(
        None, "loops of a prediction outside training; default: --loops_max", low=1, needs=LOOPED, shown_first=2
    )


class Language(Task):
    name = "language"
    unit = "tokens"
    legacy = ("NLP", None)
    models: ClassVar = {
        "ebt": "EBT",
        "baseline_transformer": "Transformer++",
        "looped_transformer": "looped Transformer++",
    }
    twin: ClassVar = {"model_name": "baseline_transformer"}
    groups = (Transformer, Energy, TokenLoops, Text)
    recipes = RECIPES
    checks = (*ENERGY_CHECKS, check_loops, check_start)
    alarms = (CONSTANT_PREDICTIONS,)
    commands = COMMANDS

    def measures(self, values: Mapping[str, Any]) -> tuple[Measure, ...]:
        """Those of a split, and what an energy adds to them."""
        return (
            Measure("loss", "loss", LOSS_UNIT, "lower", scale=1.0, line="loss {:.4f} nats", instead=BITS_PER_BYTE),
            Measure("perplexity", "perplexity", "", "lower", instead=BITS_PER_BYTE),
            Measure(
                BITS_PER_BYTE,
                "bits per byte",
                "bits per byte",
                "lower",
                derive=bits_per_byte,
                line="{:.4f} bits per byte",
            ),
            Measure("accuracy", "accuracy", "share of tokens", "higher", line="accuracy {:.1%}"),
            Measure("top5", "top-5 accuracy", "share of tokens", "higher"),
            Measure("targets", "tokens evaluated", "tokens"),
            Measure("spread", "spread of the predictions over positions", "standard deviation of a probability"),
            *energy_measures(values, LOSS_UNIT),
            *loop_measures(values),
        )

    def data(self, config: RunConfig, *runs: Path | None) -> DataModule:
        from data.language.build import language_data

        return language_data(config, *runs)

    def model(self, config: RunConfig, spec: TextSpec) -> LanguageModel:
        from models.energy_transformer import EnergyShape, EnergyTransformer
        from models.language import EnergyLM, LoopedLM, TransformerLM
        from models.spaces import UpdateRule
        from models.transformer import LoopedTransformer, TransformerShape
        from models.transformer import Transformer as Network

        transformer, energy = config[Transformer], config[Energy]
        shape = blocks_shape(transformer) | {
            "context_length": transformer.context_length,
            "vocab_size": spec.vocab_size,
            "separator_id": spec.separator_id if transformer.isolate_documents else None,
        }
        if config.run.model_name != "ebt":
            plain, checkpointing = (
                TransformerShape(**shape, tied=transformer.tie_embeddings),
                transformer.gradient_checkpointing,
            )
            if config.run.model_name == "baseline_transformer":
                return TransformerLM(Network(plain, checkpointing), spec.vocab_size, spec.pad_id)
            loops = config[TokenLoops]
            looped = LoopedTransformer(plain, loops.evaluation_loops or loops.loops_max, checkpointing)
            counts = range(loops.loops_min, loops.loops_max + 1)
            return LoopedLM(looped, spec.vocab_size, spec.pad_id, counts)
        shared = energy.vocab_to_embed_uses_prob_dist
        energy_network = EnergyTransformer(
            EnergyShape(**energy_shape(energy, shape), tied=False, shared_embedding=shared)
        )
        rule = UpdateRule(
            from_probabilities=energy.update_from == "probabilities",
            normalize=energy.normalize_initial_condition,
            entropy=energy.energy_form == "residual",
        )
        settings, replay = walk_settings(energy), replay_buffer(energy)
        return EnergyLM(energy_network, spec.vocab_size, spec.pad_id, settings, rule, replay)

    def processor(self, config: RunConfig, folder: Path) -> Tokenizer:
        """The tokenizer of a run folder; a BPE that is not there comes from the dataset's cache, or is made again."""
        from data.language.store import open_store
        from data.language.tokenizers import build_tokenizer, saved_tokenizer

        name = config[Text].tokenizer
        if saved := saved_tokenizer(folder, name):
            return saved
        return open_store(config[Text]).tokenizer if name.startswith("bpe:") else build_tokenizer(name, list)

    def spec(self, config: RunConfig, folder: Path) -> TextSpec:
        from data.language.build import TextSpec

        return TextSpec.of(self.processor(config, folder))

    def references(self, data: DataModule, split: str, units: int) -> dict[str, dict[str, float]]:
        """What counting single tokens and pairs gives."""
        from data.language.counts import ngram_baselines

        train, evaluated = data.rows["train"].tokens, data.rows[split].tokens[: units + 1]
        losses = ngram_baselines(train, evaluated, data.spec.vocab_size)
        return {f"{name} counts": {"loss": loss} for name, loss in losses.items()}

    def floor(self, data: DataModule) -> tuple[str, float]:
        """The loss of guessing each token as often as it occurs."""
        from data.language.counts import unigram_baseline

        train, valid = data.rows["train"].tokens, data.rows["valid"].tokens
        return "unigram counts", unigram_baseline(train, valid, data.spec.vocab_size)

    def check(self, config: RunConfig, data: DataModule) -> None:
        """Refuse a replay buffer that does not fit into memory, before hours are spent on filling it."""
        import psutil
        import torch

        energy, length, vocab_size = config[Energy], config[Transformer].context_length, data.spec.vocab_size
        if config.run.model_name != "ebt" or not energy.mcmc_replay_buffer:
            return
        on_gpu = torch.cuda.is_available() and config.trainer.gpus != "none"
        free = torch.cuda.mem_get_info()[0] if on_gpu else psutil.virtual_memory().available
        row = 4 * length * vocab_size
        if energy.mcmc_replay_buffer_size * row > free:
            raise UserError(
                f"--mcmc_replay_buffer_size is {energy.mcmc_replay_buffer_size}: a row has {length:,} x {vocab_size:,} "
                f"numbers, so that takes {energy.mcmc_replay_buffer_size * row / 1e9:,.1f} GB, and "
                f"{free / 1e9:,.1f} GB are free; choose at most {int(free // (2 * row))}."
            )

    def describe_data(self, config: RunConfig, data: DataModule) -> str:
        rows = data.rows["train"]
        return f"{config.data.dataset_name}: {rows.num_bytes / 1e6:.1f} MB, {rows.num_units:,} tokens to learn from"

    def show(self, showing: Showing) -> None:
        from tasks.show.language import show_language

        show_language(showing)


TASK = Language()
