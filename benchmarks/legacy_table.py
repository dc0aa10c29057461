"""Make a table with a legacy tree and a fixed server for ``l2h compare``, from scikit-learn's breast cancer data.

    OMP_NUM_THREADS=1 python benchmarks/legacy_table.py runs/legacy
    l2h compare --data runs/legacy/table.npz --client runs/legacy/tree.onnx --server runs/legacy/forest.onnx \
        --budget 1 --seeds 10 --out runs/compare-table

The tree is small and was fitted to a sixth of the samples, the forest to a third. Neither is trained again: the other
samples are those of the methods, of their calibration and of the test, divided anew by every seed.
"""

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    X, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    X, y = X[order].astype(np.float32), y[order]
    old, known = len(y) // 6, len(y) // 3
    tree = DecisionTreeClassifier(max_depth=2, random_state=0).fit(X[:old], y[:old])
    forest = RandomForestClassifier(100, random_state=0).fit(X[:known], y[:known])
    for name, model in (("tree", tree), ("forest", forest)):
        exported = to_onnx(model, X[:1], options={"zipmap": False})
        (folder / f"{name}.onnx").write_bytes(exported.SerializeToString())
        print(f"{name}: {(model.predict(X[known:]) == y[known:]).mean():.3f} right on {len(y) - known} samples")
    np.savez(folder / "table.npz", X=X[known:], y=y[known:])


main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/legacy"))
