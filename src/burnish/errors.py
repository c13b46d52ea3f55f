"""The two ways burnish ends early on purpose: the user can mend it, or a run's own alarm stopped it."""


class UserError(Exception):
    """Something the user gave can't be used: one sentence with what was given, what was expected, what to type."""

    exit_code = 2


class RunStopped(Exception):
    """A run stopped by one of its own alarms (failing graders, a non-finite loss); the message says which and where to look."""

    exit_code = 1
