"""The ways burnish ends early on purpose: the user can mend it, a run's alarm stopped it, or it was asked to end."""


class UserError(Exception):
    """Something the user gave can't be used: one sentence with what was given, what was expected, what to type."""

    exit_code = 2


class RunStopped(Exception):
    """A run stopped by one of its own alarms (failing graders, a non-finite loss); the message says which, and where to
    look."""

    exit_code = 1


class Interrupted(Exception):
    """The user or the machine asked a run to end (Ctrl-C, SIGTERM); what was done is saved."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code
