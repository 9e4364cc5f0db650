"""Messages between the main process of a sweep and its workers on other machines: JSON over authenticated sockets.

Both sides prove with HMAC that they know a token, before anything else is read. Nothing is pickled, and
every value that is received is checked.
"""

import json
import math
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from evorl.errors import OptionError, require
from evorl.sweeps.trials import DONE, FAILED, RUNNING, STATES, STOPPED, Evaluation, SweepTrial
from evorl.training.records import files

ADDRESS_VARIABLE = "EVORL_SWEEP_ADDRESS"  # environment variable of a worker: the same as JSON
ADDRESS_FILE = "main_process.json"  # in the folder of a sweep: where its main process listens, and the token
MAX_MESSAGE_BYTES = 16 * files.MB
CLAIM, OBSERVE, END, PING, LEAVE = "claim", "observe", "end", "ping", "leave"
PING_SECONDS = 10  # interval at which a worker shows that it is alive
SILENCE_SECONDS = 120  # time without a message after which the main process gives up a worker


@dataclass(frozen=True)
class MainProcessAddress:
    """Address of the main process of a sweep, and the token that its workers need."""

    host: str
    port: int
    token: str

    def write(self, folder: Path) -> None:
        """Write the address to a file in the folder of the sweep, which only its user can read."""
        files.write_atomically(folder / ADDRESS_FILE, self.to_text(), mode=0o600)

    def to_text(self) -> str:
        """Return the address as JSON."""
        return json.dumps(vars(self))

    @classmethod
    def from_text(cls, text: str) -> "MainProcessAddress":
        """Return the address that `to_text` wrote; raise ValueError if the text is not valid."""
        match json.loads(text):
            case {"host": str(host), "port": int(port), "token": str(token)} if 0 < port < 2**16:
                return cls(host, port, token)
        raise ValueError("no address")

    @classmethod
    def read(cls, folder: Path, option: str) -> "MainProcessAddress":
        """Read the address from the folder of a sweep; raise OptionError if no main process listens for workers."""
        path = folder / ADDRESS_FILE
        require(path.is_file(), option, folder, "no main process listens for workers; start the sweep with listen=HOST")
        try:
            return cls.from_text(files.read_text(path))
        except (ValueError, RecursionError) as error:
            raise OptionError(f"{option}={folder}: its {ADDRESS_FILE} cannot be read") from error


def send(connection: Connection, message: Any) -> None:
    """Send a message, which JSON can represent."""
    connection.send_bytes(json.dumps(message).encode())


def receive(connection: Connection) -> Any:
    """Receive a message; raise ConnectionError if it is no JSON, too long, or the other side has left."""
    try:
        return json.loads(connection.recv_bytes(MAX_MESSAGE_BYTES))
    except (EOFError, OSError) as error:
        raise ConnectionError("the connection is closed") from error
    except (ValueError, RecursionError) as error:
        raise ConnectionError("a message cannot be read") from error


def encode_trial(trial: SweepTrial) -> dict[str, Any]:
    """Return a trial as a message; its learning curve is not part of it."""
    return {"number": trial.number, "point": list(trial.point), "values": dict(trial.values)}


def decode_trial(message: Any) -> SweepTrial:
    """Return the trial of a message; raise ConnectionError if it is not valid."""
    match message:
        case {"number": int(number), "point": list(point), "values": dict(values)} if 0 <= number < 2**31:
            if all(isinstance(x, float | int) for x in point):
                return SweepTrial(number, tuple(map(float, point)), values, RUNNING)
    raise ConnectionError("a trial is not valid")


def encode_evaluation(evaluation: Evaluation) -> list[float | None]:
    """Return an evaluation as a message, in which None stands for a score that is not finite."""
    used, cost, score = evaluation
    return [float(used), float(cost), float(score) if math.isfinite(score) else None]


def decode_evaluation(message: Any) -> Evaluation:
    """Return the evaluation of a message; raise ConnectionError if it is not valid."""
    match message:
        case [float(used), float(cost), float() | None as score] if 0 <= used <= 1 and math.isfinite(cost):
            if score is None or math.isfinite(score):
                return Evaluation(used, cost, math.nan if score is None else score)
    raise ConnectionError("an evaluation is not valid")


def require_end(state: Any, used: Any, message: Any) -> None:
    """Raise ConnectionError unless a trial may end so."""
    whole = state in (DONE, STOPPED, FAILED) and state in STATES and isinstance(used, float) and 0 <= used <= 1
    if not (whole and isinstance(message, str)):
        raise ConnectionError("the end of a trial is not valid")
