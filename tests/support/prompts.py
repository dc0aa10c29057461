"""Made-up prompts of two answerers: the client fails on the hard topics, the server on hardly any."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.bool_]
TOPICS = {"algebra": 0.25, "logic": 0.4, "cooking": 0.9, "sports": 0.95}
FILLER = ["what", "is", "the", "right", "answer", "when", "somebody", "asks", "this", "about", "a", "thing"]


def made_up(n: int, seed: int = 0) -> tuple[list[str], Bits, Bits]:
    """Return prompts, and who was right about each."""
    rng = np.random.default_rng(seed)
    topics = rng.choice(list(TOPICS), n)
    texts = [f"{topic} {' '.join(rng.choice(FILLER, 6))} {rng.integers(100)}?" for topic in topics]
    easy = np.array([TOPICS[topic] for topic in topics])
    return texts, rng.random(n) < easy, rng.random(n) < 0.9


def write_csv(path: Path, n: int, seed: int = 0, text_column: str = "prompt") -> Path:
    """Write such a table and return its path."""
    texts, client, server = made_up(n, seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([text_column, "client_right", "server_right"])
        writer.writerows(zip(texts, client.astype(int), server.astype(int), strict=True))
    return path
