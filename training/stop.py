"""Why a run stops before its end, in words a person can act on."""


class StopRun(RuntimeError):
    """Ends the run with a message instead of a stack trace; the door prints it and exits with `status`.

    cause: what attempts.jsonl says of it.
    """

    cause = "stopped"
    status = 1


class Diverged(StopRun):
    """Nothing good follows from the numbers it has come to."""

    cause = "diverged"
