"""What a person can put right."""


class UserError(ValueError):
    """A mistake that its message explains; the door prints it without a stack trace and exits with status 2."""
