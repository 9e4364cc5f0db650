"""Handling of signals during a training."""

import os
import signal
import sys
import threading
import time
from typing import Any

PATIENCE = 0.5  # seconds in which the main thread handles a signal, unless it is blocked


class StopHandler:
    """Handler of SIGINT and SIGTERM.

    Before training has begun, a signal raises KeyboardInterrupt. Afterwards, the first signal asks the
    training to save and end, the second raises KeyboardInterrupt, and any later one ends the process at once,
    like SIGKILL. The second one also ends the process at once if the main thread waits for a device, because
    Python delivers signals only to the main thread.
    """

    def __enter__(self) -> "StopHandler":
        self.has_started, self._count, self._heard, self._told = False, 0, 0, False
        file, self._signals = os.pipe()
        os.set_blocking(self._signals, False)
        self._wakeup = signal.set_wakeup_fd(self._signals, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(file,), daemon=True).start()
        self._before = {
            number: signal.signal(number, self._handle_signal) for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._hook, sys.unraisablehook = sys.unraisablehook, self._handle_unraisable
        return self

    def __call__(self) -> bool:
        """Return whether to save and end; the first call marks the beginning of training."""
        self.has_started = True
        return self._count > 0

    def __exit__(self, *_: Any) -> None:
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._signals)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook

    def _handle_unraisable(self, unraisable: Any) -> None:
        """Raise an interrupt again that occurred where Python ignores exceptions, such as a weak reference callback.

        Errors in other threads are not printed: tensorstore's threads raise them for parts of a failed save,
        and the save itself raises an error, too.
        """
        main = threading.main_thread()
        if threading.current_thread() is main and unraisable.exc_type is KeyboardInterrupt:
            self._count -= 1
            threading.Timer(0.01, signal.pthread_kill, (main.ident, signal.SIGINT)).start()
        elif threading.current_thread() is main:
            self._hook(unraisable)

    def _handle_signal(self, number: int, frame: Any) -> None:
        self._count, self._heard = self._count + 1, self._heard + 1
        if self._count > 1 + self.has_started:
            self._exit(number)
        if self._count > self.has_started:
            raise KeyboardInterrupt
        self._announce_stop()

    def _watch(self, file: int) -> None:
        """Handle signals in a second thread if training has begun and the main thread does not handle them."""
        count = 0
        while number := os.read(file, 1):
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            count += 1
            time.sleep(PATIENCE)
            if not self.has_started or self._heard >= count:
                continue
            if count > 1:
                print("stopped without saving", file=sys.stderr, flush=True)
                self._exit(number[0])
            self._announce_stop()
        os.close(file)

    def _announce_stop(self) -> None:
        if not self._told:
            self._told = True
            print("stopping after this chunk; interrupt again to stop without saving", file=sys.stderr, flush=True)

    def _exit(self, number: int) -> None:
        if sys.stdout.isatty():
            os.write(1, b"\x1b[?25h")  # shows the cursor, which a live panel hides
        os._exit(128 + number)
