"""What signals do to a training."""

import os
import signal
import sys
import threading
from typing import Any


class Stopping:
    """What SIGINT and SIGTERM do: before training has begun they end it; then a first one asks it to save and end.

    A second raises KeyboardInterrupt, and any later one ends the process where it stands, as SIGKILL would.
    """

    def __enter__(self) -> "Stopping":
        self.begun, self._count = False, 0
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._ignored
        return self

    def __call__(self) -> bool:
        """Whether to save and end; training begins when it first asks."""
        self.begun = True
        return self._count > 0

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _ignored(self, unraisable: Any) -> None:
        """Raises an interrupt again that fell where Python ignores exceptions, such as a weak reference's callback.

        Says nothing of a failed save's parts, which tensorstore's own threads raise; the save itself has raised too.
        """
        main = threading.main_thread()
        if threading.current_thread() is main and unraisable.exc_type is KeyboardInterrupt:
            self._count -= 1
            threading.Timer(0.01, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
        elif threading.current_thread() is main:
            self._hook(unraisable)

    def _ask(self, number: int, frame: Any) -> None:
        self._count += 1
        if self._count > 1 + self.begun:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h")  # the cursor, which a live panel hides
            os._exit(128 + number)
        if self._count > self.begun:
            raise KeyboardInterrupt
        print("stopping after this chunk; once more to stop without saving", file=sys.stderr, flush=True)
