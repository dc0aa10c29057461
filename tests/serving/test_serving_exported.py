"""From a trained system to answers over HTTP: the server says what the system's own server says."""

from __future__ import annotations

import numpy as np
from serving_process import Client, Server
from sklearn.tree import DecisionTreeClassifier

import l2h
from l2h import HelpSystem, Settings, StageSettings
from l2h.bundle import ServerBundle


def test_an_exported_system_is_served(tmp_path):
    data = l2h.load_dataset("digits", seed=0)
    X, y = data.X_train[:300], data.y_train[:300]
    client = DecisionTreeClassifier(max_depth=4, random_state=0).fit(X.reshape(len(X), -1), y)
    stage = StageSettings(epochs=2, batch=64)
    settings = Settings(server=stage, rejector=stage, folds=2, copies=1, device="cpu", seed=0)
    system = HelpSystem(
        client, "lenet5", settings=settings, server_options={"width": 0.5}, rejector_options={"width": 1}
    )
    system.fit(X, y).calibrate(data.X_train[300:500], data.y_train[300:500])
    system.export(tmp_path / "bundle", name="exported")
    test = data.X_test[:64]
    wanted = ServerBundle(tmp_path / "bundle").run(test)
    with Server(tmp_path / "bundle", tmp_path / "s") as server:
        for binary in (True, False):
            reply = Client(server, name="exported").ask(test, binary=binary)
            assert reply.status == 200, reply.body
            np.testing.assert_allclose(reply.scores, wanted, rtol=1e-4, atol=1e-4)
        assert server.rows("model, inputs") == [("exported", 64)] * 2
