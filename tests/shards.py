"""Assign test files to shards. `python -m tests.shards 6 FILE ...` prints the numbers of their shards."""

import sys
import zlib
from pathlib import PurePath


def shard_of(file, count):
    """Return the number, from 1 to count, of the shard that holds a test file."""
    return zlib.crc32(PurePath(file).name.encode()) % count + 1


if __name__ == "__main__":
    count, *files = sys.argv[1:]
    tests = [file for file in files if PurePath(file).name.startswith("test_")]
    print(*sorted({shard_of(file, int(count)) for file in tests}))
