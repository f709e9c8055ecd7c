"""Use a trained model: `python -m inference COMMAND`.

commands.py finds the command and parses its flags, loading.py loads the model of --run or --ckpt, and the command's
`main` does the work: evaluate.py and think_curve.py for every task, language/ for text. thinking.py has the walk down
the energy that they share.
May import: core, config, data, models, runs, tasks.
"""
