"""Faults that TrainCommand.with_fault plants into a training."""

from __future__ import annotations

NAN_AT_STEP_3 = """
    import models.layers.feed_forward as target
    plain, calls = target.FeedForward.forward, []
    def forward(self, x):
        calls.extend([1] * (x.device.type != "meta"))  # where only FLOPs are counted
        out = plain(self, x)
        return out * float("nan") if self.training and len(calls) > 4 else out  # two layers: the third step
    target.FeedForward.forward = forward
"""

INFINITE_WEIGHT = """
    import torch
    from tasks.language import Language
    plain = Language.model
    def build_model(*args):
        model = plain(*args)
        with torch.no_grad():
            model.network.blocks[1].attention.output.weight[0, 0] = float("inf")
        return model
    Language.model = build_model
"""

UNUSED_LAYER = """
    import torch
    from tasks.language import Language
    plain = Language.model
    def build_model(*args):
        model = plain(*args)
        model.forgotten = torch.nn.Linear(3, 3)
        return model
    Language.model = build_model
"""

LABELS_OF_ANOTHER_ROW = """
    import torch
    from torch.nn import functional
    plain = functional.cross_entropy
    def cross_entropy(logits, targets, **options):
        return plain(logits, torch.randint(0, 256, targets.shape), **options)
    functional.cross_entropy = cross_entropy
"""
