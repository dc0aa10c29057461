"""Images per second of a server's training whose inputs are read, beside the same in memory and torch alone.

    OMP_NUM_THREADS=1 python benchmarks/streaming.py --folder /tmp/streaming
    python benchmarks/streaming.py --folder /tmp/streaming --device cuda --precision bf16 --side 224 --samples 9216 \
        --batch 256 --epochs 7 --server vit --option patch=16 --option width=384 --option depth=12 --option heads=6

Writes random images into the folder once, then trains the same network, from the same weights, in these ways, which
take turns epoch by epoch: with the inputs in memory (on a GPU in its memory), streamed from the file, streamed from a
torch `Dataset` that reads one sample at a time, and by a plain loop of torch with a DataLoader of that data set. The
first epoch of each does not count. Prints images per second (median, lowest and highest epoch) and the median of the
ratios to each other way in the same epoch. `--whole ROUNDS` takes whole trainings instead, of server and rejector with
changed copies of the images, in memory and streamed in turn, and counts each image of the file once. On a CPU it is
checked that the weights of all ways but torch's are the same to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import l2h
from l2h.data import StoredArray
from l2h.data.objects import DatasetRows
from l2h.models import build_scaled
from l2h.settings import Settings, StageSettings
from l2h.training import Context, pick_device
from l2h.training.loop import repeatable, seeded
from l2h.training.server import ServerStage
from l2h.training.streaming import Inputs, stream, take_inputs

CLASSES = 10
STREAMED = ("streamed", "streamed Dataset")


class Images(Dataset[tuple[Tensor, int]]):
    """The file as a person would read it with torch: one mapped image at a time."""

    def __init__(self, path: Path, y: np.ndarray) -> None:
        self.path, self.y, self.x = path, y, None

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        if self.x is None:  # in each worker
            self.x = np.load(self.path, mmap_mode="r")
        return torch.from_numpy(np.array(self.x[row])), int(self.y[row])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the images")
    parser.add_argument("--out", type=Path, help="a JSON file of the figures")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=600.0, help="no epoch begins after so long")
    parser.add_argument("--whole", type=int, help="rounds of whole trainings, of --epochs each stage")
    parser.add_argument("--workers", type=int, help="processes that read (default: what a training takes)")
    parser.add_argument("--server", default="lenet5")
    parser.add_argument("--option", action="append", default=[], help="of the server, NAME=NUMBER")
    arguments = parser.parse_args()
    options = {name: json.loads(value) for name, value in (text.split("=") for text in arguments.option)}
    rates = measure(arguments, options) if arguments.whole is None else measure_whole(arguments, options)
    for way, found in rates.items():
        ratios = {
            other: statistics.median(a / b for a, b in zip(found, rates[other], strict=True))
            for other in rates
            if other != way
        }
        beside = ", ".join(f"{ratio:.2f} of {other}" for other, ratio in ratios.items())
        spread = f"{statistics.median(found):9,.0f} images/s ({min(found):,.0f} to {max(found):,.0f})"
        print(f"{way:18} {spread}; {beside}", flush=True)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps({"arguments": {k: str(v) for k, v in vars(arguments).items()}, **rates}))


def measure(arguments: Any, options: dict[str, Any]) -> dict[str, list[float]]:
    """Return images per second of each way in each epoch but the first."""
    device = pick_device(arguments.device)
    path, y = make_images(arguments.folder, arguments.samples, arguments.side)
    settings = Settings(device=str(device), precision=arguments.precision, workers=arguments.workers)
    steps = StageSettings(epochs=arguments.epochs, batch=arguments.batch, patience=None)
    shape, images, rows = (3, arguments.side, arguments.side), Images(path, y), StoredArray(path)

    def net() -> nn.Module:
        with seeded(device, 0, "server"):
            return build_scaled(arguments.server, shape, CLASSES, None, **options).to(device)

    def stage(way: str, x: Inputs, context: Context) -> ServerStage:
        return ServerStage(way, net(), x, torch.from_numpy(y).to(device), steps, context)

    context = Context(settings, device)
    with repeatable(settings, device):
        resident = take_inputs(rows[:], context)
        ways: dict[str, ServerStage] = {
            "in memory": stage("in memory", resident, context),
            "streamed": stage("streamed", stream(rows, context), context),
            "streamed Dataset": stage("streamed Dataset", stream(DatasetRows(images), context), context),
        }
        workers = next(iter(context.readers.values())).workers(arguments.batch)
        print(f"{len(y)} images of {shape}, {rows.nbytes / 1e9:.2f} GB, {device}, {workers} processes read", flush=True)
        trainings: dict[str, Callable[[int], None]] = {way: epoch_of(own) for way, own in ways.items()}
        trainings["torch alone"] = plain_loop(net(), images, steps, context, workers)
        seconds: dict[str, list[float]] = {way: [] for way in trainings}
        end = time.perf_counter() + arguments.seconds
        for epoch in range(arguments.epochs):
            if epoch > 1 and time.perf_counter() > end:
                break
            for way, train in trainings.items():
                begun = time.perf_counter()
                train(epoch)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                seconds[way].append(time.perf_counter() - begun)
    if device.type == "cpu":
        for way in STREAMED:
            for name, tensor in ways["in memory"].model.state_dict().items():
                assert torch.equal(tensor, ways[way].model.state_dict()[name]), f"{way}: {name} differs"
        print("the weights are the same to the last bit", flush=True)
    return {way: [len(y) / taken for taken in times[1:]] for way, times in seconds.items()}


def measure_whole(arguments: Any, options: dict[str, Any]) -> dict[str, list[float]]:
    """Return images per second of whole trainings, one figure for each round but the first."""
    path, y = make_images(arguments.folder, arguments.samples, arguments.side)
    stage, rows = StageSettings(epochs=arguments.epochs, batch=arguments.batch, patience=None), StoredArray(path)
    settings = Settings(
        device=arguments.device,
        precision=arguments.precision,
        workers=arguments.workers,
        honest="holdout",
        augment="flip+shift",
        copies=1,
        server=stage,
        rejector=stage,
    )

    def client(X: np.ndarray) -> np.ndarray:
        return X.reshape(len(X), -1)[:, :CLASSES].astype(np.float64)

    system = l2h.HelpSystem(
        l2h.as_client(client, output="logit"), arguments.server, settings=settings, server_options=options
    )
    job = system.prepare(rows[:], y)
    jobs = {"in memory": job, "streamed": replace(job, X=rows)}
    rates: dict[str, list[float]] = {way: [] for way in jobs}
    weights: list[list[Tensor]] = []
    for number in range(arguments.whole + 1):
        for way, own in jobs.items():
            begun = time.perf_counter()
            with repeatable(settings, system.device):
                trained = system.method.train(own, Context(settings, system.device))
            if number:
                rates[way].append(len(y) / (time.perf_counter() - begun))
            else:
                server = trained.servers[0]
                assert isinstance(server, nn.Module)
                weights.append([*server.state_dict().values(), *trained.rejectors.state_dict().values()])
    if system.device.type == "cpu":
        assert all(torch.equal(one, two) for one, two in zip(*weights, strict=True)), "the weights differ"
        print("the weights are the same to the last bit", flush=True)
    return rates


def epoch_of(stage: ServerStage) -> Callable[[int], None]:
    def train(epoch: int) -> None:
        with seeded(stage.context.device, 0, "epoch", epoch):
            stage.draws = "epoch"  # the same order for all
            stage.train_epoch(epoch, lambda: None)

    return train


def plain_loop(
    net: nn.Module, images: Images, steps: StageSettings, context: Context, workers: int
) -> Callable[[int], None]:
    """The loop that a person writes: a DataLoader, autocast, AdamW."""
    device = context.device
    cuda = device.type == "cuda"
    loader = DataLoader(
        images, steps.batch, shuffle=True, num_workers=workers, pin_memory=cuda, persistent_workers=workers > 0
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=steps.lr, fused=cuda or None)

    def train(epoch: int) -> None:
        net.train()
        total = torch.zeros((), device=device)
        for given in loader:
            x, y = (part.to(device, non_blocking=True) for part in given)
            with context.autocast():
                loss = F.cross_entropy(net(x).float(), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(y)
        float(total)

    return train


def make_images(folder: Path, samples: int, side: int) -> tuple[Path, np.ndarray]:
    """Write random uint8 images and return their file and labels; a file that is there already is kept."""
    path = folder / f"images-{samples}-{side}.npy"
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, samples)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        file = np.lib.format.open_memmap(part, "w+", np.uint8, (samples, 3, side, side))
        for start in range(0, samples, 1024):
            rows = file[start : start + 1024]
            rows[:] = np.frombuffer(rng.bytes(rows.nbytes), np.uint8).reshape(rows.shape)
        file.flush()
        os.replace(part, path)
    return path, y


if __name__ == "__main__":
    main()
