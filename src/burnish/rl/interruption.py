"""Ctrl-C and SIGTERM, turned into a question the loop asks at moments where it can stop with nothing lost."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from burnish.errors import Interrupted


class Interruption:
    """While entered, the first SIGINT or SIGTERM is only noted; a second SIGINT interrupts at once, as without this.

    Signal handlers belong to the main thread: elsewhere nothing is caught and `raise_if_asked` never raises.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        """Which one came, if any."""
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_asked(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.signal is not None:
            raise Interrupted(f"stopped by {self.signal.name}", exit_code=128 + self.signal)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
