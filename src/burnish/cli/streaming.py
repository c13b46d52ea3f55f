"""A model's text on a terminal as it comes: only what later tokens can't change, and nothing that moves the cursor."""

from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""What decoding gives for the first bytes of a character whose others are still to come."""


class TextStream:
    """Prints a growing text, each part of it once."""

    def __init__(self, out: TextIO, spinner: Console | None = None) -> None:
        """With a `spinner` console, something turns there until there is text."""
        self._out = out
        self._spinner = None if spinner is None else spinner.status(Text("thinking", style="dim"))
        self.text = ""
        """What has been printed."""

    def __enter__(self) -> Self:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_spinner()

    def show(self, text: str) -> None:
        """Print what `text` holds beyond the part that is printed already."""
        self._print(text.rstrip(_UNFINISHED))

    def finish(self, text: str) -> None:
        """Print the rest, and end the line."""
        self._print(text)
        self._stop_spinner()
        self._out.write("\n")
        self._out.flush()

    def _print(self, text: str) -> None:
        if text:
            self._stop_spinner()
        # By length, not by likeness: what was printed can't be taken back, should decoding ever change its mind.
        self._out.write(printable(text[len(self.text) :]))
        self._out.flush()
        self.text = max(self.text, text, key=len)

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def printable(text: str) -> str:
    """`text` without the control characters by which a model could move the cursor or change colours."""
    return "".join(char if char.isprintable() or char in "\n\t" else _UNFINISHED for char in text)
