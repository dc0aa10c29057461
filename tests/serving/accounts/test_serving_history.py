"""What a ledger tells: sums that stay exact when old rows are summed up, in ledgers of every version."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from ledger_maker import NOW, fill
from serving_process import Client, Server, make_key
from waiting import until

from l2h.cli.app import run
from l2h.serving.accounts import copy_ledger, open_history
from l2h.serving.accounts.history import DAY, GROUPS, SUMS, write_csv
from l2h.serving.accounts.key import Quota
from l2h.serving.errors import LedgerError

#: Ledgers with key files and keys, written by version 0.1.0 and by the version after it.
OLDER = Path(__file__).with_name("older")
BY = [(), ("key",), ("day",), ("key", "day"), ("month", "model", "version")]


def expected(charges: list[tuple], by: tuple[str, ...]) -> list[dict]:
    """The sums, computed row by row."""
    found: dict[tuple, dict] = {}
    for at, key, _, model, version, inputs, units, delivered in charges:
        day = time.strftime("%Y-%m-%d", time.gmtime(at // DAY * DAY))
        values = {"key": key, "day": day, "month": day[:7], "model": model, "version": version}
        group = tuple(values[name] for name in by)
        row = found.setdefault(group, {**{name: values[name] for name in by}, **dict.fromkeys(SUMS, 0)})
        for name, value in zip(SUMS, (1, inputs, units, delivered == 0, delivered is None), strict=True):
            row[name] += value
    return [found[group] for group in sorted(found)]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request, tmp_path) -> Path | str:
    """A ledger with charges in a file, or in a database."""
    fill(tmp_path / "ledger.db", 5000)
    if request.param == "sqlite":
        return tmp_path / "ledger.db"
    url = request.getfixturevalue("postgres").new()
    copy_ledger(tmp_path / "ledger.db", [], url, lambda done, of: None)
    return url


@pytest.mark.parametrize("by", BY, ids="-".join)
def test_sums_are_exact_however_many_rows_were_summed_up(tmp_path, place, by):
    charges = fill(tmp_path / "the same.db", 5000)
    history = open_history(place)
    wanted = expected(charges, by)
    for keep in (200, 100, 99.5, 10, 0):
        pruned = history.prune(NOW - keep * DAY)
        assert (pruned == 0) == (keep == 200)
        assert history.report(by) == wanted
    history.prune(NOW + 2 * DAY)
    left = int(isinstance(place, Path))  # in SQLite the last number is not given again
    assert history.ask("SELECT count(*) FROM charges") == [(left,)]
    assert history.report(by) == wanted
    some = history.report(by, since=NOW - 30 * DAY, until=NOW - 10 * DAY)
    days = range(int((NOW - 30 * DAY) // DAY), -int(-(NOW - 10 * DAY) // DAY))
    assert some == expected([row for row in charges if row[0] // DAY in days], by)


@pytest.mark.long
def test_a_kill_in_the_middle_loses_nothing_and_counts_nothing_twice(tmp_path):
    path = tmp_path / "ledger.db"
    wanted = expected(fill(path, 40_000), ("key", "day"))
    script = f"from l2h.serving.accounts import open_history\nopen_history({str(path)!r}).prune({NOW})"
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", script])
        with closing(sqlite3.connect(path, timeout=60)) as db:
            before = db.execute("SELECT count(*) FROM charges").fetchone()
            until(lambda db=db, before=before: db.execute("SELECT count(*) FROM charges").fetchone() < before)
            process.send_signal(signal.SIGKILL)
            process.wait()
            left = db.execute("SELECT count(*) FROM charges").fetchone()[0]
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert open_history(path).report(("key", "day")) == wanted
        if not left:
            break


@pytest.mark.long
def test_a_server_sums_up_what_is_older_than_it_keeps_while_it_goes_on(bundle, tmp_path, x):
    path = tmp_path / "ledger.db"
    charges = fill(path, 6000)
    with closing(sqlite3.connect(path)) as db, db:  # 100 days and more before today
        db.execute("UPDATE charges SET time = time - ?", (NOW - time.time() + 100 * DAY,))
    sums = open_history(path).report(())
    with Server(bundle, tmp_path, workers=2, keep=90 * DAY) as server:
        for i in range(20):
            assert Client(server).ask(x, Idempotency_Key=f"{i}").status == 200
        until(lambda: len(server.rows("id")) == 20)
        until(lambda: server.rows("count(*)", "delivered = 1") == [(20,)])
        (line,) = until(lambda: server.events("ledger_pruned"))
        assert line["rows"] == len(charges)
    (found,) = open_history(path).report(())
    assert found == {name: sums[0][name] + more for name, more in zip(SUMS, (20, 60, 60, 0, 0), strict=True)}


@pytest.mark.parametrize("version", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_ledger_and_a_key_file_of_an_earlier_version_are_taken_over(tmp_path, version):
    for name in ("ledger_{}.db", "keys_{}.json"):
        shutil.copy(OLDER / name.format(version), tmp_path)
    ledger, keys = tmp_path / f"ledger_{version}.db", tmp_path / f"keys_{version}.json"
    key = (OLDER / f"key_{version}.txt").read_text().strip()
    before = dict(zip(SUMS, (4, 7, 21, 0, 4), strict=True))
    assert open_history(ledger).report(()) == [before], "also before a server has taken it over"
    bundle = Path(__file__).parents[2] / "compatibility" / "version_0_1" / "priced-bundle"
    with Server(bundle, tmp_path, ledger=str(ledger), keys=str(keys), price=3) as server:
        model = json.loads(server.get("/v2/models/digits")[1])["inputs"][0]
        shape = [1, *model["shape"][1:]]
        size = math.prod(shape)

        def ask(value: int, name: str) -> str:
            tensor = {"name": "x", "datatype": model["datatype"], "shape": shape, "data": [value] * size}
            body = json.dumps({"inputs": [tensor]}).encode()
            reply = Client(server, key).post(body, {"Idempotency-Key": name})
            return reply.headers.get("l2h-charged", reply.body.decode())

        assert ask(0, "i-0") == "0", "it was charged by the version before"
        assert "used for another request" in ask(1, "i-0")
        assert ask(0, "new") == "1"
        until(lambda: server.rows("delivered", "idempotency_key = 'new'") == [(1,)])
    (after,) = open_history(ledger).report(())
    assert after == {name: before[name] + more for name, more in zip(SUMS, (1, 1, 3, 0, 0), strict=True)}
    assert open_history(ledger).prune(time.time() + DAY) == 5 - 1
    assert open_history(ledger).report(()) == [after]


def told(capsys, *words: str) -> str:
    assert run([*words]) == 0
    return capsys.readouterr().out


def test_the_commands_tell_the_same_in_every_form(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    charges = fill(tmp_path / "ledger.db", 300)
    file, key_id, _ = make_key(tmp_path, "phones", quota=Quota.parse("100/week"))
    with closing(sqlite3.connect("ledger.db")) as db, db:
        db.execute("UPDATE charges SET key_id = ? WHERE key_id = 'a'", (key_id,))
        db.execute("INSERT INTO usage VALUES (?, 604800, ?, 42, '', 0)", (key_id, int(time.time() // 604800)))
    renamed = [(at, key_id if key == "a" else key, *rest) for at, key, *rest in charges]
    names = {key_id: "phones"}
    wanted = [
        {"key": row.pop("key"), "name": names.get(key, ""), **row}
        for row in expected(renamed, ("key", "day"))
        for key in [row["key"]]
    ]
    command = ("ledger", "report", "--by", "key", "--by", "day")
    assert json.loads(told(capsys, *command, "--json")) == wanted
    rows = list(csv.DictReader(io.StringIO(told(capsys, *command, "--csv"))))
    assert rows == [{name: str(value) for name, value in row.items()} for row in wanted]
    table = told(capsys, "ledger", "report")
    assert "phones" in table
    assert f"{sum(row['units'] for row in wanted):,}" in table, "the last row is the sum"
    assert json.loads(told(capsys, "ledger", "prune", "--keep", "1h", "--json"))["pruned"] == 300 - 1
    assert json.loads(told(capsys, *command, "--json")) == wanted
    (key,) = json.loads(told(capsys, "keys", "list", "--json"))
    mine = [row for row in wanted if row["key"] == key_id]
    assert key["used"] == 42
    assert key["charged"] == {name: sum(row[name] for row in mine) for name in SUMS}
    assert "42" in told(capsys, "keys", "list", "--file", str(file))
    assert "no charges in this time" in told(capsys, "ledger", "report", "--since", "2090-01-01")


def test_no_spreadsheet_computes_a_name(capsys):
    names = ["=1+1", "+1", "-1", "@SUM(1)", " =1", "a=b", "me"]
    write_csv([{"name": name, "units": -3} for name in names], (), sys.stdout)
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == [*(f"'{name}" for name in names[:5]), "a=b", "me"]
    assert {row["units"] for row in rows} == {"-3"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["report", "--ledger", "none.db"], "there is no ledger none.db"),
        (["report", "--by", "colour"], "no sums by 'colour'"),
        (["report", "--since", "today"], "no day"),
        (["report", "--json", "--csv"], "exclude each other"),
        (["prune", "--keep", "soon"], "write 90d"),
        (["prune", "--keep", "5m"], "from 1h"),
        (["report", "--ledger", "text.db"], "cannot read the ledger text.db"),
        (["prune", "--keep", "90d", "--ledger", "text.db"], "cannot use the ledger text.db"),
    ],
)
def test_bad_words_are_refused_in_one_line(tmp_path, capsys, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "ledger.db", 1)
    Path("text.db").write_text("no database at all\n" * 100)
    assert run(["ledger", *words]) in (1, 2)
    assert says in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_every_group_is_one_of_the_command(tmp_path):
    fill(tmp_path / "ledger.db", 10)
    assert list(open_history(tmp_path / "ledger.db").report(list(GROUPS))[0])[: len(GROUPS)] == list(GROUPS)
    with pytest.raises(LedgerError, match="no sums"):
        open_history(tmp_path / "ledger.db").report(["key; DROP TABLE charges"])
