"""An ONNX camera model: a file that cannot change reads photos by day; at night it needs help.

The script makes photos of many sizes and the old file, trains a server and a rejector, and exports a bundle. Then it
starts ``l2h serve`` as a process of its own, and answers photos as the camera would: with onnxruntime, without torch.

    python examples/camera.py
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from subprocess import DEVNULL, PIPE

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.linear_model import LogisticRegression

import l2h

SIZE = 12  # as --size: the shorter side of a photo becomes 12 pixels, and the centre is cut out
STRONG = ExtraTreesClassifier(30)  # quick to train; "lenet5" or "alexnet" in its place is a network


def make_photos(folder: Path) -> None:
    """Write handwritten digits as photos of many sizes, a third of them dark, in one folder per class."""
    rng = np.random.default_rng(0)
    for number, (digit, label) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        light = 15 if number % 3 else 2
        pixels = rng.normal(light * digit.reshape(8, 8), 8).clip(0, 255).astype(np.uint8)
        path = folder / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize(rng.integers(20, 40, 2).tolist()).save(path)


def main(folder: Path) -> None:
    """Train in a folder, and answer from it."""
    make_photos(folder / "photos")
    data = l2h.load_dataset(folder / "photos", size=SIZE, test_share=0.3, cache=False)
    # The camera's model is a file. It was fitted to photos by day with pixels from 0 to 1, which L2H finds out.
    day = np.flatnonzero(data.X_train.max(axis=(1, 2, 3)) > 150)[::3]
    weak = LogisticRegression().fit(data.X_train[day].reshape(len(day), -1) / 255, data.y_train[day])
    l2h.export.save_onnx(weak, folder / "camera.onnx")
    X, y = np.delete(data.X_train, day, axis=0), np.delete(data.y_train, day)

    system = l2h.HelpSystem(folder / "camera.onnx", STRONG, image_size=SIZE, dataset="photos")
    # Without the file's photos by day, too much of X is dark. So the rejector is calibrated on what the camera sees.
    system.fit(X, y).calibrate(data.X_test[::2], data.y_test[::2])
    X, y = data.X_test[1::2], data.y_test[1::2]
    print(system.evaluate(X, y, costs=l2h.Costs(c_e=0.1)))
    system.export(folder / "bundle")

    command = [sys.executable, "-m", "l2h", "serve", "bundle", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=PIPE, stderr=DEVNULL, text=True) as server:
        try:
            assert server.stdout
            url = server.stdout.readline().split(" at ")[1].split(",")[0]  # serving ... at http://..., 1 worker
            with l2h.EdgeClient(folder / "bundle", server=url, deadline=10) as edge:
                answers = edge.predict(X)
        finally:
            server.terminate()
    right, asked = (answers.label == y).mean(), (answers.by == "server").mean()
    print(f"on the device: {right:.1%} right, {asked:.1%} asked")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
