"""A method is a trainer: each that learns is trained, saved, exported and run on a device, also one from outside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from clouds import CLASSES, QUICK, X_TEST, Net, X, Y
from commands import call, environment, execute, one_line
from waiting import STUCK

import l2h
from l2h import Costs, EdgeClient, HelpSystem, Settings, methods
from l2h.bundle import DeviceBundle
from l2h.errors import RunError, SettingsError, UnknownNameError
from l2h.methods import Learned

COSTS = Costs(c_e=0.1, c_1=1.0)
#: One method of each kind of output; the others are in the long suite.
SHORT = ("priced-attached", "two-stage-confidence")
LEARNED = [method.name for method in methods.get(methods.known()) if isinstance(method, Learned)]
SETTINGS = Settings(server=QUICK, rejector=QUICK, folds=2, threads=1)
MINE = '''
import l2h
from l2h.methods import Learned, Traits, local_score

@l2h.methods.register
class Mine(Learned):
    """Asks where a squared loss says that the client errs."""

    name, title = "mine", "Mine"
    equation = "(r - 1[m = y])^2"
    traits = Traits(separate=True, learns_client=True, learns_server=False, asynchronous=None)
    net = "separate"

    def loss(self, scores, pool, prices):
        return (local_score(scores) - (2.0 * pool.client_correct - 1)) ** 2
'''


def fitted(method: str | Learned, classes: int = CLASSES) -> HelpSystem:
    rows = np.isin(Y, range(classes))
    client = Net() if classes == CLASSES else lambda x: (x[:, 0] > 0).astype(int)
    system = HelpSystem(client, "mlp", method=method, settings=SETTINGS)
    return system.fit(X[rows], Y[rows], COSTS).calibrate(X[rows][:80], Y[rows][:80])


@pytest.mark.parametrize(
    "name", [name if name in SHORT else pytest.param(name, marks=pytest.mark.long) for name in LEARNED]
)
def test_a_method_is_trained_saved_and_run_on_a_device(name: str, tmp_path: Path) -> None:
    system = fitted(name, 2 if name == "binary-l2h" else CLASSES)
    before = system.predict(X_TEST, costs=COSTS)
    system.save(tmp_path / "run")
    given = {"client": system.client} if name == "binary-l2h" else {}
    again = l2h.load(tmp_path / "run", **given)
    assert again.method.name == name
    # The client comes back as an ONNX file, whose sums are rounded otherwise.
    np.testing.assert_allclose(again.judge(X_TEST).scores, system.judge(X_TEST).scores, atol=1e-4)
    system.export(tmp_path / "bundle")
    client = given.get("client")
    _, judged = DeviceBundle(tmp_path / "bundle", client=client).judge(X_TEST)
    saving = system.judge(X_TEST).saving(COSTS)
    # What the exporter may differ by, in single precision.
    np.testing.assert_allclose(judged.saving(COSTS), saving, atol=2e-4)
    with EdgeClient(tmp_path / "bundle", costs=COSTS, client=client) as edge:
        asked = edge.predict(X_TEST).reason == "no_server"
    clear = np.abs(saving) > 2e-4
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(asked[clear], (before.source == "remote")[clear])


def test_the_methods_differ_in_what_they_send() -> None:
    sent = {name: fitted(name).predict(X_TEST, costs=COSTS).source == "remote" for name in ("ova-l2d", "softmax-l2d")}
    assert not np.array_equal(sent["ova-l2d"], sent["softmax-l2d"])


@pytest.mark.parametrize(
    ("loss", "rejector", "name"),
    [("priced", "attached", "priced-attached"), ("shifted", "separate", "shifted-separate")],
)
def test_loss_and_rejector_spell_a_method(loss: str, rejector: str, name: str) -> None:
    spelled = HelpSystem(Net(), "mlp", rejector, settings=Settings(**{**vars(SETTINGS), "loss": loss}))
    assert spelled.method.name == name
    named = fitted(name)
    spelled.fit(X, Y, COSTS).calibrate(X[:80], Y[:80])
    np.testing.assert_array_equal(spelled.judge(X_TEST).scores, named.judge(X_TEST).scores)


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"'nonsense'.*two-stage-confidence"):
        HelpSystem(Net(), "mlp", method="nonsense")
    with pytest.raises(UnknownNameError, match="'confidence'"):
        HelpSystem(Net(), "mlp", method="confidence")
    with pytest.raises(SettingsError, match="separate"):
        HelpSystem(Net(), "mlp", "attached", method="two-stage-separate")
    with pytest.raises(SettingsError, match="loss"):
        HelpSystem(Net(), "mlp", method="ova-l2d", settings=Settings(loss="shifted"))
    paper = Settings(recipe="paper", loss="paper", server=QUICK, rejector=QUICK)
    with pytest.raises(SettingsError, match="loss of its own"):
        HelpSystem(Net(), "mlp", method="two-stage-confidence", settings=paper)
    with pytest.raises(SettingsError, match="trains for a price"):
        HelpSystem(Net(), "mlp", method="softmax-l2d", settings=SETTINGS).fit(X, Y)
    with pytest.raises(SettingsError, match="2 classes"):
        HelpSystem(Net(), "mlp", method="binary-l2h", settings=SETTINGS).fit(X, Y, COSTS)


def test_a_method_that_lacks_a_part_or_takes_a_name_is_refused() -> None:
    with pytest.raises(SettingsError, match="lacks equation, net"):

        @methods.register
        class Half(Learned):
            name, title = "half", "Half"

    with pytest.raises(SettingsError, match="already"):

        @methods.register
        class Again(Learned):
            name, title, equation, net = "ova-l2d", "Again", "0", "separate"

    with pytest.raises(SettingsError, match="no method"):
        methods.register(int)
    assert "half" not in methods.known()


@pytest.mark.parametrize(
    ("text", "told"),
    [(None, "no file"), ("x = 1\n", "registers no method"), ("1 / 0\n", "ZeroDivisionError"), ("def\n", "SyntaxError")],
)
def test_a_method_file_that_is_none_is_told_in_one_line(text: str | None, told: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    run = ["train", "--data", "digits", "--out", tmp_path / "run", "--method", "mine", "--method-file", file]
    result = call(*run)
    assert result.status == 2
    assert told in one_line(result.err)
    assert "Traceback" not in result.err
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_method_of_a_file_is_trained_evaluated_exported_and_compared(tmp_path: Path) -> None:
    file, run = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(MINE)
    small = ["--client", "tree", "--server", "mlp", "--limit", 300, "--set", "threads=1", "--set", "folds=2"]
    small += ["--set", "server.epochs=1", "--set", "rejector.epochs=1", "--option", "rejector.width=0.25"]
    mine = ["--method-file", file]
    two = ["--seeds", 2, "--jobs", 2, "--method", "mine", "--method", "confidence"]
    for arguments in (
        ["train", "--data", "digits", *small, "--out", run, "--method", "mine"],
        ["evaluate", run],
        ["export", run, "--out", tmp_path / "bundle"],
        ["compare", "--dataset", "digits", *small, *two, "--out", tmp_path / "compared"],
    ):
        done = execute(*arguments, *mine)
        assert done.status == 0, done.err
    assert "mine" in (tmp_path / "compared" / "comparison.csv").read_text()
    assert {seed.name for seed in (tmp_path / "compared" / "seeds").iterdir()} == {"seed-0.npz", "seed-1.npz"}
    assert DeviceBundle(tmp_path / "bundle").manifest.rejector.specs[0].loss == "mine"
    # A run folder never runs code by itself: the file must be named again.
    with pytest.raises(RunError, match="--method-file"):
        l2h.load(run)


def test_a_package_brings_a_method_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "bringing.py").write_text(MINE.replace("@l2h.methods.register\n", ""))
    about = tmp_path / "bringing-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bringing\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[l2h.methods]\nmine = bringing:Mine\n")
    script = "import l2h; print(l2h.methods.find_learned('mine').title, 'mine' in l2h.methods.known())"
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{Path(l2h.__file__).parents[1]}"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=STUCK, env=env, check=False
    )
    assert done.stdout.strip() == "Mine True", done.stderr
