"""Exceptions that end a run with a message. Imports no torch: processes meet before it is loaded."""


class RunStopped(RuntimeError):
    """Ends the run with a message instead of a stack trace; train_model.py prints it and exits with `status`.

    cause: what attempts.jsonl says of it.
    """

    cause = "stopped"
    status = 1


class RunDiverged(RunStopped):
    """Its numbers are not finite, or it diverged again after its last rollback."""

    cause = "diverged"
