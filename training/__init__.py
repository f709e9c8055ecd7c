"""Training a model. `trainer` puts a run together from the rest.

Before it: `resume` merges the settings with those of a checkpoint, `devices` and `peers` set up its processes,
`optimizers` the optimizer, `cost` counts FLOPs and memory; `plan` and `find` are tools that train nothing.
While it runs: `recorder` measures, `divergence` and `health` judge, `checkpoints` saves, `stopping`, `interruption` and
`hang_watch` end it, `progress`, `usage` and `wandb` show it; `debugging` has the callbacks of debugging flags,
`fault_injection` those of drills.
After it: `report`. `lightning` is the only file that touches Lightning's internals.
May import: core, config, data, models, runs, tasks.
"""
