from __future__ import annotations

import subprocess

import numpy as np
import pytest
from serving_maker import linear, write_bundle
from serving_process import Server


@pytest.fixture(scope="session")
def bundle(tmp_path_factory):
    """A bundle that no test changes."""
    folder = tmp_path_factory.mktemp("bundle") / "digits"
    write_bundle(folder, linear())
    return folder


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    """An open server with two workers, for tests that leave it as it was."""
    with Server(bundle, tmp_path_factory.mktemp("server"), workers=2) as running:
        yield running


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """The files of a certificate that nobody has signed, and of its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    more = ["-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, *more, *names], check=True, capture_output=True)
    return cert, key


@pytest.fixture
def x():
    return np.random.default_rng(0).integers(0, 255, (3, 1, 4, 4)).astype(np.uint8)
