"""Somebody's API as the server: answers cost money, so every image is asked about once and its answer is kept.

The API is a process of its own with a JSON protocol that L2H does not know: the function ``ask`` speaks it. The API's
address and key come from the environment, so they are in no file.

    python examples/api.py
"""

import json
import multiprocessing
import os
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

import l2h

X, y = load_digits(return_X_y=True)


def ask(images: Any) -> list[int]:
    """Ask the API about a batch of images, and return a label for each."""
    body = json.dumps({"images": images.tolist()}).encode()
    request = urllib.request.Request(os.environ["DIGITS_API"], body, {"X-Api-Key": os.environ["DIGITS_KEY"]})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return [found["digit"] for found in json.load(reply)["found"]]


class Api(BaseHTTPRequestHandler):
    """Stands for somebody's API in this example: {"images": [...]} gives {"found": [{"digit": 7}, ...]}."""

    model = KNeighborsClassifier(3).fit(X[:600], y[:600])

    def do_POST(self) -> None:
        images = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["images"]
        if self.headers["X-Api-Key"] != "secret":
            return self.send_error(401)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"found": [{"digit": int(d)} for d in self.model.predict(images)]}).encode())

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


def run_api(port: Any) -> None:
    """Serve until the process ends."""
    server = HTTPServer(("127.0.0.1", 0), Api)
    port.send(server.server_port)
    server.serve_forever()


if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    multiprocessing.Process(target=run_api, args=(there,), daemon=True).start()
    os.environ |= {"DIGITS_API": f"http://127.0.0.1:{here.recv()}/v1/read", "DIGITS_KEY": "secret"}  # yours: export

    old = DecisionTreeClassifier(max_depth=6, random_state=0).fit(X[:300], y[:300])
    api = l2h.RemoteServer(ask, version="2026-05", batch=100)  # cache="answers" keeps what was paid for on the disk
    system = l2h.HelpSystem(client=old, server=api, budget="3k", dataset="digits").fit(X[600:1300], y[600:1300])
    print(f"training asked about {api.paid} images in {api.calls} calls")
    money = l2h.Money(request_cost=0.002, error_cost=0.02, currency="EUR", per_day=10_000)
    print(system.evaluate(X[1300:], y[1300:], costs=money))
    system.evaluate(X[1300:], y[1300:], costs=l2h.Costs(c_e=0.02))
    print(f"evaluation at two prices asked about {api.paid - 700} more, once each")
