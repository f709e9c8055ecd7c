"""Raw data to batches: the splits of a run, the order of its batches, and the position that a checkpoint saves.

`module` has the DataModule of every task, `stream` the order of rows, `inspect` what --debug_dataloader prints, `hub`
and `parallel` help to read datasets; a folder for each kind of data (`language`) makes rows of it.
May import: core, config.
"""
