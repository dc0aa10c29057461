"""A pickled estimator is refused with the line that makes a client of it, and the line works."""

from __future__ import annotations

import pickle
import re
import shlex
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from clouds import X_TEST, X, Y
from commands import environment
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from l2h import as_client
from l2h.errors import ClientError
from l2h.export import ConversionError, save_onnx


def converting_line(path: Path) -> list[str]:
    with pytest.raises(ClientError, match="a pickle from a stranger runs code") as caught:
        as_client(path)
    found = re.search(r"this line writes (\S+): (.*)", str(caught.value))
    assert found is not None
    assert found[1] == str(path.with_suffix(".onnx"))
    return shlex.split(found[2])


@pytest.mark.parametrize(
    "suffix", [".pkl", *(pytest.param(kind, marks=pytest.mark.long) for kind in (".joblib", ".pickle"))]
)
def test_the_line_in_the_message_converts_it(suffix: str, tmp_path: Path) -> None:
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    path = tmp_path / f"it's old{suffix}".replace(" ", "-")
    if suffix == ".joblib":
        joblib.dump(estimator, path)
    else:
        path.write_bytes(pickle.dumps(estimator))
    python, flag, code = converting_line(path)
    assert (python, flag) == ("python", "-c")
    if suffix == ".joblib":
        subprocess.run([sys.executable, flag, code], check=True, env=environment())
    else:
        exec(code, {})
    answers = as_client(path.with_suffix(".onnx")).answers(X_TEST, 3)
    assert np.allclose(answers.probability, estimator.predict_proba(X_TEST), atol=1e-5)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (lambda inputs: inputs, "a function is no fitted scikit-learn estimator"),
        (LogisticRegression().fit(X, Y + 1), r"the classes of the estimator are \[1, 2, 3\], not 0, 1"),
    ],
)
def test_what_cannot_be_converted_is_told(estimator: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match=message):
        save_onnx(estimator, tmp_path / "client.onnx")
    assert not (tmp_path / "client.onnx").exists()
