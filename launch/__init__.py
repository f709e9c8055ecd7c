"""Submit, monitor and control runs, on Slurm or on this machine: `python -m launch COMMAND`.

Submitting: submit (slurm_executor.sh and `launch submit`) and sweep check the flags, resources and script build the
request and the job script, capsule makes the run's folder, submission hands it to Slurm; queue runs jobs here.
On the node: job finds the run's folder and judges how its processes ended.
Afterwards: status, why, logs, control (cancel, requeue, resubmit) and bad_nodes; slurm reads the jobs.
Testing a cluster: doctor with its probe, drill with drill_runner and random_drill.
May import: core, config, runs.
"""
