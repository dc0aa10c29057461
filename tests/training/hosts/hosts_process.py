"""``l2h`` as a program of its own that keeps a witness: ``hosts_process.py WITNESS ARGUMENTS...``.

A line for every snapshot before it is published and for every one whose bytes were taken into use: what really
happened, told by neither the history nor the status that are to be tested.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path

from l2h.cli import main
from l2h.training.exchange import ReceivedSnapshot, SnapshotStore


def watch(witness: Path) -> None:
    """Write a line at each ``SnapshotStore.publish`` and ``ReceivedSnapshot.read``."""
    publish, read = SnapshotStore.publish, ReceivedSnapshot.read

    def say(**values: object) -> None:
        with witness.open("a") as file:
            file.write(json.dumps(values) + "\n")

    def publish_and_tell(self, kind, data, step, meta):
        say(event="published", step=step, size=len(data), sha256=sha256(data).hexdigest())
        return publish(self, kind, data, step, meta)

    def read_and_tell(self):
        data = read(self)
        say(event="used", step=self.step, version=self.version, sha256=sha256(data).hexdigest())
        return data

    SnapshotStore.publish, ReceivedSnapshot.read = publish_and_tell, read_and_tell


if __name__ == "__main__":
    watch(Path(sys.argv.pop(1)))
    main()
