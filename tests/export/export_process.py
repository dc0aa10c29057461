"""Exports that are killed: ``export_process.py FOLDER``.

One system is trained, and a process is forked for every kill; each exports that system by itself until SIGKILL. What is
at the target afterwards goes to stdout as JSON, one line per kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bundle_maker import on_table
from clouds import scores

from l2h.bundle import BundleError, Manifest
from l2h.bundle.manifest import read_files
from l2h.bundle.writing import put_in_place

torch.set_num_threads(1)


def killed(work: Callable[[], None], when: Callable[[int], None]) -> bool:
    """Run ``work`` in a process of its own and kill it after ``when``; whether it had not ended before."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    when(pid)
    done, _ = os.waitpid(pid, os.WNOHANG)
    if done == 0:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return done == 0


def state(target: Path) -> str:
    """``none``, ``whole``, or what is wrong."""
    if not target.exists():
        return "none"
    try:
        for side in ("device", "server"):
            read_files(target, Manifest.read(target), side)
    except BundleError as error:
        return str(error)
    return "whole"


def main(folder: Path) -> None:
    system = on_table(scores, "separate")
    first = folder / "first"
    begun = time.monotonic()
    system.export(first)
    took = time.monotonic() - begun
    manifest = Manifest.read(first)
    files = {name: (first / name).read_bytes() for name in manifest.files}

    def report(kind: str, target: Path, early: bool) -> None:
        left = [path.name for path in folder.iterdir() if path.name.startswith(f".{target.name}.")]
        line = json.dumps({"kind": kind, "target": state(target), "early": early, "left": len(left)})
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    # Whole exports: killed while they compute, and as soon as something of theirs is on the disk.
    for i, share in enumerate((0.1, 0.5, None)):
        target = folder / f"export-{i}"

        def wait(_: int, share: float | None = share, target: Path = target) -> None:
            until = time.monotonic() + (60 if share is None else share * took)
            while time.monotonic() < until and not any(folder.glob(f".{target.name}.*")):
                time.sleep(0.0005)

        report("export", target, killed(lambda target=target: system.export(target), wait))
    # Their last step alone, over and over, killed at any moment of it.
    target = folder / "written"

    def write() -> None:
        while True:
            put_in_place(files, manifest, target, force=True)

    for i in range(25):
        report("write", target, killed(write, lambda _, i=i: time.sleep(0.002 + 0.0037 * i)))
    put_in_place(files, manifest, target, force=True)
    report("after", target, True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
