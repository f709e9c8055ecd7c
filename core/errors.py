"""Errors that a person can correct."""


class UserError(ValueError):
    """A mistake that its message explains; a program prints it without a stack trace and exits with status 2."""
