"""Ray on this machine: it listens on the loopback address alone, writes nothing at home, and ends with us."""

import os
import signal
import socket
import stat
import struct

import pytest

from evorl.distributed.cluster import SHORT_TEMP_FOLDER
from tests import clusters

clusters.require_ray()
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}

ENDS = {  # what it does, what is done to it, and its exit status
    "at its end": ("pass", lambda process: process.communicate("\n", timeout=30), 0),
    "by an error": ("raise RuntimeError", lambda process: process.communicate("\n", timeout=30), 1),
    "by Ctrl-C": ("pass", lambda process: os.killpg(process.pid, signal.SIGINT), -signal.SIGINT),
    "by SIGKILL": ("pass", lambda process: process.kill(), -signal.SIGKILL),
}


def test_the_kernel_prints_the_loopback_address_as_expected():
    four = socket.inet_aton("127.0.0.1")
    assert f"{struct.unpack('=I', four)[0]:08X}" in LOOPBACK
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        assert clusters.listening({os.getpid()}) == ["0100007F"]


@pytest.mark.program
@pytest.mark.parametrize("end", ENDS)
def test_it_listens_on_loopback_alone_and_leaves_nothing(end, tmp_path):
    then, ended, status = ENDS[end]
    before = set(SHORT_TEMP_FOLDER.glob("evorl-ray-*"))
    process = clusters.started(then, tmp_path)
    try:
        folders = set(SHORT_TEMP_FOLDER.glob("evorl-ray-*")) - before
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
        all_of_it = clusters.processes(process.pid)
        assert len(all_of_it) > 4
        found = clusters.listening(all_of_it)
        assert found
        assert set(found) <= LOOPBACK
        ended(process)
        assert not clusters.gone_within(all_of_it, 30)
        assert process.wait(1) == status
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert not list(tmp_path.iterdir())
    assert set(SHORT_TEMP_FOLDER.glob("evorl-ray-*")) <= before
