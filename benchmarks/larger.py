"""Train and evaluate on more images than the memory may hold, and measure what that takes.

    python benchmarks/larger.py --folder /scratch/larger --gigabytes 12 --out results/larger

Makes WebDataset shards of JPEG images (128x128, ten classes) that take so many gigabytes when they are decoded, runs
``l2h train`` and ``l2h evaluate`` on them, and samples the memory of all their processes: the proportional set
size, in which a page that processes share counts once. What the kernel keeps of files is not in it. Images per second
are beside their limit: threads that do nothing but decode the same images, measured in the same run. Writes
``larger.json``. The folder needs a quarter more than the gigabytes; ``--keep`` leaves it behind.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE, CLASSES, PER_SHARD, TEST_SHARE = 128, 10, 4096, 0.1
DECODED = 3 * SIDE * SIDE
#: One epoch each and small models: the point is the data.
TRAINING = [
    *("--client", "vit", "--client-share", "0.02", "--budget", "100k", "--server", "vit", "--augment", "none"),
    *(part for who in ("client", "server") for name in ("patch=32", "width=32", "depth=1", "heads=2")
      for part in ("--option", f"{who}.{name}")),
    *(part for name in ("epochs=1", "batch=256") for who in ("server", "rejector")
      for part in ("--set", f"{who}.{name}")),
    *("--set", "copies=0"),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where shards, decoded images and the run go")
    parser.add_argument("--gigabytes", type=float, default=12.0, help="of decoded images")
    parser.add_argument("--out", type=Path, help="folder of larger.json (default: print only)")
    parser.add_argument("--keep", action="store_true", help="leave shards and decoded images behind")
    arguments = parser.parse_args()
    folder, images = arguments.folder, round(arguments.gigabytes * 1e9 / DECODED)
    try:
        begun = time.perf_counter()
        files = make(folder / "shards", images)
        packed = sum(file.stat().st_size for file in files)
        found: dict[str, Any] = {"images": images, "decoded_bytes": images * DECODED, "packed_bytes": packed}
        print(f"{images} images in {len(files)} shards made in {time.perf_counter() - begun:.0f} s", flush=True)
        found["decoding_limit_per_second"] = round(decoding_limit(files))
        found |= measure(folder, images)
        print(json.dumps(found, indent=2))
        if arguments.out is not None:
            arguments.out.mkdir(parents=True, exist_ok=True)
            (arguments.out / "larger.json").write_text(json.dumps(found, indent=2) + "\n")
    finally:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)


def make(folder: Path, images: int) -> list[Path]:
    """Write the shards that are not there yet, by one process per core."""
    folder.mkdir(parents=True, exist_ok=True)
    test = round(images * TEST_SHARE)
    starts = {"train": range(test, images, PER_SHARD), "test": range(0, test, PER_SHARD)}
    ends = {"train": images, "test": test}
    jobs = [
        (folder / f"{part}-{number:05}.tar", start, min(start + PER_SHARD, ends[part]))
        for part in starts
        for number, start in enumerate(starts[part])
    ]
    with ProcessPoolExecutor() as pool:
        return list(pool.map(write_shard, jobs))


def write_shard(job: tuple[Path, int, int]) -> Path:
    """Write images ``start`` to ``end``: a grating whose angle tells the class, in a colour, with noise."""
    path, start, end = job
    if path.exists():
        return path
    rng = np.random.default_rng(start)
    down, across = np.mgrid[0:SIDE, 0:SIDE].astype(np.float32) / SIDE
    noise = rng.integers(-20, 21, (64, SIDE, SIDE, 3), dtype=np.int16)
    turns, phases = np.pi * np.arange(8 * CLASSES, dtype=np.float32) / (8 * CLASSES), (0, 1.5, 3, 4.5)
    angles = [40 * (across * np.cos(turn) + down * np.sin(turn)) for turn in turns]
    waves = [[(40 * np.cos(angle + phase)).astype(np.int16)[..., None] for phase in phases] for angle in angles]
    temporary = path.with_suffix(".part")
    with tarfile.open(temporary, "w") as archive:
        for i in range(start, end):
            label = int(rng.integers(CLASSES))
            turn, phase = round(8 * (label + rng.normal(0, 0.6))) % len(waves), int(rng.integers(len(phases)))
            pixels = rng.integers(60, 190, 3, dtype=np.int16) + waves[turn][phase] + noise[int(rng.integers(64))]
            jpeg = io.BytesIO()
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(jpeg, "JPEG", quality=80)
            for name, data in ((f"{i:08}.jpg", jpeg.getvalue()), (f"{i:08}.cls", str(label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return temporary.rename(path)


def decoding_limit(files: list[Path], seconds: float = 8.0) -> float:
    """Return how many images per second one thread per core decodes that does nothing else."""
    with tarfile.open(files[0]) as archive:
        members = [member for member in archive if member.name.endswith(".jpg")]
        encoded = [reader.read() for member in members if (reader := archive.extractfile(member)) is not None]
    done = [0] * (os.cpu_count() or 1)
    until = time.perf_counter() + seconds

    def decode(worker: int) -> None:
        while time.perf_counter() < until:
            for data in encoded[worker :: len(done)][:64]:
                Image.open(io.BytesIO(data)).convert("RGB").tobytes()
                done[worker] += 1

    with ThreadPoolExecutor(len(done)) as pool:
        list(pool.map(decode, range(len(done))))
    return sum(done) / seconds


def measure(folder: Path, images: int) -> dict[str, Any]:
    """Run the commands and return times, images per second and peaks of memory."""
    common = ["--cache", str(folder / "decoded")]
    data = ["--data", str(folder / "shards"), *common, "--stream"]
    train, lines = watch(["train", *data, *TRAINING, "--out", str(folder / "run"), "--force"])
    evaluate, _ = watch(["evaluate", str(folder / "run"), *common, "--out", str(folder / "again"), "--force"])
    metrics = [json.loads((folder / name / "metrics.json").read_text()) for name in ("run", "again")]
    decoded = next(second for second, line in lines if "samples for server and rejector" in line)
    with (folder / "run" / "history.csv").open(newline="") as file:
        epochs = {row["stage"]: float(row["seconds"]) for row in csv.DictReader(file)}
    return {
        "train": train | {"seconds_until_decoded": round(decoded, 1)},
        "evaluate": evaluate,
        "decoded_per_second": round(images / decoded),
        "epoch_seconds": epochs,
        "accuracy": metrics[0]["accuracy"],
        "evaluated_again_is_the_same": metrics[0]["risk"] == metrics[1]["risk"],
    }


def watch(command: list[str]) -> tuple[dict[str, Any], list[tuple[float, str]]]:
    """Run ``l2h`` with a command; return its time and its peak of memory, and its lines with the second of each."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "l2h", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    lines: list[tuple[float, str]] = []

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append((time.perf_counter() - begun, line.rstrip()))
            print(f"{lines[-1][0]:7.1f} s {line.rstrip()}", flush=True)

    reader = threading.Thread(target=read)
    reader.start()
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(map(memory, family(process.pid))))
        time.sleep(0.2)
    reader.join()
    if process.returncode:
        sys.exit(f"l2h {command[0]} failed")
    return {"seconds": round(time.perf_counter() - begun, 1), "peak_memory_bytes": peak}, lines


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children += map(int, task.read_text().split())
        except OSError:  # it has ended
            continue
    return [pid, *(member for child in children for member in family(child))]


def memory(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except OSError:
        return 0


if __name__ == "__main__":
    main()
