"""The size table: what --model_size stands for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """One row of the table; its fields are the flags that it fills in."""

    num_transformer_blocks: int
    embedding_dim: int
    multiheaded_attention_heads: int
    peak_learning_rate: float


SIZES = {
    "tiny": Size(4, 96, 2, 0.0024),  # ours, for a CPU: deeper and narrower than 4xs (docs/log.md)
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
