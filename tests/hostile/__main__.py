"""Attack a server on this machine with everything that an attacker has tried so far.

    python -m tests.hostile                     # servers of our own, the short form
    python -m tests.hostile --long              # everything, about half an hour
    python -m tests.hostile --target http://127.0.0.1:8080 --key-file key.txt

A named server must run on a loopback address; any other is refused. It gets the scenarios that need no control over
its process: the others kill it, change its bundle or its clock, and start servers of their own.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from hostile_target import KEY, URL, loopback  # noqa: E402


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m tests.hostile", description=__doc__, formatter_class=form)
    parser.add_argument("--target", metavar="URL", help="a server that runs on a loopback address")
    parser.add_argument("--key-file", type=Path, help="file that holds a key of that server")
    parser.add_argument("--long", action="store_true", help="the long scenarios as well")
    parser.add_argument("-k", dest="only", metavar="WORDS", help="only the scenarios whose names match, as pytest's -k")
    given = parser.parse_args()
    if given.target is not None:
        try:
            loopback(given.target)
        except (ValueError, OSError) as error:
            parser.error(str(error))
        os.environ[URL] = given.target
        if given.key_file is not None:
            os.environ[KEY] = given.key_file.read_text().strip()
    chosen = [] if given.long else ["-m", "not long"]
    return pytest.main([str(HERE), "-v", *chosen, *(["-k", given.only] if given.only else [])])


if __name__ == "__main__":
    sys.exit(main())
