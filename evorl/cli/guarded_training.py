"""Command `python -m evorl.cli.guarded_training`: `evorl.train`, killed when its standard input ends.

A Ray actor starts it. If the actor dies, another one resumes the training, which must then have ended.
"""

import os
import signal
import threading

from evorl.cli.train import main


def _end_with_parent() -> None:
    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    main()
