"""Training a model: trainer builds it, lightning touches Lightning's internals, devices and peers place its processes.

While it runs: recorder measures, divergence and health judge, checkpoints saves, resume continues, interruption and
hang_watch stop, progress and usage and wandb show. Before it: find and cost. After it: report.
"""
