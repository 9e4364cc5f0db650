"""What signals do to a training."""

import os
import signal
import sys
import threading
import time
from typing import Any

PATIENCE = 0.5  # seconds in which the main thread hears of a signal, unless it waits


class Stopping:
    """What SIGINT and SIGTERM do: before training has begun they end it; then a first one asks it to save and end.

    A second raises KeyboardInterrupt, and any later one ends the process where it stands, as SIGKILL would. The second
    does too where the main thread, the only one that Python tells of signals, waits for a device and hears of none.
    """

    def __enter__(self) -> "Stopping":
        self.begun, self._count, self._heard, self._told = False, 0, 0, False
        file, self._signals = os.pipe()
        os.set_blocking(self._signals, False)
        self._wakeup = signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(file,), daemon=True).start()
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        self._hook, sys.unraisablehook = sys.unraisablehook, self._ignored
        return self

    def __call__(self) -> bool:
        """Whether to save and end; training begins when it first asks."""
        self.begun = True
        return self._count > 0

    def __exit__(self, *_: Any) -> None:
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._signals)
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
        self._count, self._heard = self._count + 1, self._heard + 1
        if self._count > 1 + self.begun:
            self._end(number)
        if self._count > self.begun:
            raise KeyboardInterrupt
        self._tell()

    def _watch(self, file: int) -> None:
        """Does what the main thread would do, where it does not and training has begun."""
        count = 0
        while number := os.read(file, 1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            count += 1
            time.sleep(PATIENCE)
            if not self.begun or self._heard >= count:
                continue
            if count > 1:
                print("stopped without saving", file=sys.stderr, flush=True)
                self._end(number[0])
            self._tell()
        os.close(file)

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            print("stopping after this chunk; once more to stop without saving", file=sys.stderr, flush=True)

    def _end(self, number: int) -> None:
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h")  # the cursor, which a live panel hides
        os._exit(128 + number)
