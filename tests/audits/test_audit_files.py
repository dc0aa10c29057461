"""Audit files: what was written is read, whatever else stands beside it, and the folder does not grow without end."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from made_audits import CLASSES, header, pair, write

from l2h.audits import AuditError, AuditLog, read_audits
from l2h.errors import SettingsError


def files(folder):
    return sorted(folder.glob("*.jsonl"))


def append(folder, *lines):
    """Append lines to the first file of a folder, and return its path."""
    (path, *_) = files(folder)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    return path


def test_what_is_written_is_read_with_the_labels_of_later_starts(tmp_path):
    first = write(tmp_path, [pair(1, client=2, server=1), pair(2, kind="asked", probability=0.1, heads=(0.5, 1.5))])
    first.feedback(f"{1:016x}", 1)
    first.close()
    later = write(tmp_path, [pair(3, server=None, fault="deadline")], device="cam-8")
    later.feedback(f"{2:016x}", 0)
    later.feedback(f"{1:016x}", 2)
    pairs = read_audits(tmp_path)
    assert (pairs.files, pairs.devices, pairs.left_out) == (2, ("cam-7", "cam-8"), ())
    assert pairs.id == tuple(f"{i:016x}" for i in (1, 2, 3))
    np.testing.assert_array_equal(pairs.asked, [False, True, False])
    np.testing.assert_array_equal(pairs.client, [2, 0, 0])
    np.testing.assert_array_equal(pairs.server, [1, 0, -1])
    np.testing.assert_array_equal(pairs.label, [2, 0, -1])
    np.testing.assert_allclose(pairs.weight, [100, 10, 100])
    np.testing.assert_allclose(pairs.stated, 1 / (1 + np.exp(-np.array([[2, 3], [0.5, 1.5], [2, 3]]))))
    np.testing.assert_array_equal(pairs.rows(pairs.asked).heads, [[0.5, 1.5]])
    assert pairs.fault.tolist() == ["", "", "deadline"]


def test_a_label_for_an_unknown_id_is_refused_and_one_line_says_why(tmp_path):
    log = write(tmp_path, [pair(1)])
    with pytest.raises(AuditError, match=r"no pair in .* has the id 'nobody'"):
        log.feedback("nobody", 1)
    assert read_audits(tmp_path).label.tolist() == [-1]


foreign = json.loads(json.dumps({"id": "f", "time": 1.0, "probability": 0.5, "reason": "over_limit", "which": 0}))
foreign |= {"kind": "audit", "heads": [1, 2], "client": 0, "server": 1, "by": "server", "costs": {"c_e": 0.1, "c_1": 1}}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{not json", "damaged"),
        ("[1, 2]", "damaged"),
        (foreign | {"reason": "\x1b[31m"}, "damaged"),
        (foreign | {"heads": [1, 2, 3]}, "other heads"),
        (foreign | {"heads": [1, "NaN"]}, "damaged"),
        (json.dumps(foreign | {"heads": [1, float("nan")]}), "damaged"),
        (json.dumps(foreign).replace("[1, 2]", "[1, 1e999]"), "damaged"),
        (foreign | {"client": 3}, "no class of the bundle"),
        (foreign | {"server": -1}, "damaged"),
        (foreign | {"probability": 0}, "damaged"),
        (foreign | {"probability": 1.5}, "damaged"),
        (foreign | {"time": 1e30}, "damaged"),
        (foreign | {"by": "cloud"}, "an answerer that the bundle does not have"),
        (foreign | {"which": 1}, "other heads"),
        (foreign | {"local": 1}, "an answerer that the bundle does not have"),
        (foreign | {"kind": "other"}, "damaged"),
        (foreign | {"costs": {"c_e": -1, "c_1": 1}}, "damaged, costs"),
        (foreign | {"costs": {}}, "damaged, costs"),
        (foreign | {"id": f"{1:016x}"}, "an id that an earlier line has"),
        ({"kind": "label", "id": f"{1:016x}", "label": 7, "time": 1.0}, "a label that is no class"),
        ("{" * 5000, "damaged"),
        (json.dumps({"l2h": "audit", "schema": 9, "bundle": "b", "name": "n", "classes": ["a", "b"], "local": 1,
                     "answerers": ["c", "s"], "platt": []}), "update l2h"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_belong_is_left_out_counted_and_named(tmp_path, line, reason):
    write(tmp_path, [pair(1), pair(2)])
    path = append(tmp_path, line)
    pairs = read_audits(tmp_path)
    (left_out,) = pairs.left_out
    assert len(pairs) == 2
    assert reason in left_out.reason
    assert left_out.count == 1
    assert left_out.where == f"{path}:4"
    assert str(left_out).startswith("1 line left out: ")


def test_pairs_of_other_bundles_or_classes_are_left_out_and_the_newest_bundle_is_taken(tmp_path):
    write(tmp_path, [pair(i) for i in range(3)], bundle="old")
    write(tmp_path, [pair(i) for i in range(10, 14)], classes=("x", "y", "z"))
    write(tmp_path, [pair(i) for i in range(20, 25)])
    pairs = read_audits(tmp_path)
    assert (pairs.header.bundle, pairs.header.classes, len(pairs)) == ("0123456789ab", CLASSES, 5)
    assert {each.reason: each.count for each in pairs.left_out} == {
        "another bundle, old": 3,
        "a header that gives the bundle other classes or answerers": 4,
    }
    assert len(read_audits(tmp_path, bundle="old")) == 3
    with pytest.raises(AuditError, match=r"no pair of bundle never in 3 files; there are pairs of 0123456789ab, old"):
        read_audits(tmp_path, bundle="never")
    # The same folder twice is no new pairs, and files put together are read as they were apart.
    assert len(read_audits(tmp_path, *files(tmp_path))) == 5
    whole = tmp_path / "whole.txt"
    whole.write_bytes(b"".join(path.read_bytes() for path in files(tmp_path)))
    assert len(read_audits(whole)) == 5


def test_while_one_bundle_follows_another_each_pair_stands_below_its_own(tmp_path):
    log, old, new = AuditLog(tmp_path), header(bundle="old"), header(bundle="new")
    for number, of in enumerate([old, old, new, old, new, new]):
        log.write([pair(number)], of)
    assert read_audits(tmp_path, bundle="old").id == tuple(f"{i:016x}" for i in (0, 1, 3))
    assert read_audits(tmp_path).id == tuple(f"{i:016x}" for i in (2, 4, 5))
    # However often they take turns, no file is begun for it: many would have the oldest deleted.
    for number in range(6, 600):
        log.write([pair(number)], new if number % 2 else old)
    assert (len(read_audits(tmp_path)), len(read_audits(tmp_path, bundle="old")), len(files(tmp_path))) == (300, 300, 1)


def test_a_label_that_comes_with_another_bundle_is_the_class_that_it_names(tmp_path):
    log = write(tmp_path, [pair(1), pair(2)], bundle="old")
    log.begin(header(bundle="new", classes=("d", *reversed(CLASSES))))
    log.feedback(f"{1:016x}", 1)  # "c"
    log.feedback(f"{2:016x}", 0)  # "d"
    pairs = read_audits(tmp_path, bundle="old")
    assert pairs.label.tolist() == [2, -1]
    assert [each.reason for each in pairs.left_out] == ["a label that is no class of the bundle"]


def test_pairs_go_on_in_another_file_where_theirs_was_deleted(tmp_path):
    folder = tmp_path / "audits"
    log = write(folder, [pair(1)])
    shutil.rmtree(folder)
    log.write([pair(2)])
    with pytest.raises(AuditError, match="has been deleted"):
        log.feedback(f"{1:016x}", 0)
    log.feedback(f"{2:016x}", 1)
    pairs = read_audits(folder)
    assert (pairs.id, pairs.label.tolist(), log.lost) == ((f"{2:016x}",), [1], 0)


def test_sources_without_audits_are_refused(tmp_path):
    with pytest.raises(AuditError, match="is not there"):
        read_audits(tmp_path / "missing")
    with pytest.raises(AuditError, match="holds no audit files"):
        read_audits(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"hello": 1}\n')
    with pytest.raises(AuditError, match=r"no pair in 1 file; 1 line left out: damaged"):
        read_audits(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(AuditError, match="cannot make the folder"):
        AuditLog(tmp_path / "file" / "audits")
    with pytest.raises(SettingsError, match="largest=10"):
        AuditLog(tmp_path, largest=10)


def test_files_rotate_and_the_oldest_are_deleted_over_restarts(tmp_path):
    number = 0
    for _ in range(4):
        log = AuditLog(tmp_path, largest=2000, most=8000)
        log.begin(header())
        for _ in range(30):
            log.write([pair(number)])
            number += 1
        log.close()
        sizes = [path.stat().st_size for path in files(tmp_path)]
        assert max(sizes) <= 2000
        assert sum(sizes) <= 8000
    pairs = read_audits(tmp_path)
    assert pairs.id == tuple(f"{i:016x}" for i in range(number - len(pairs), number))
    assert len(pairs) > 10
    log.feedback(f"{number - 1:016x}", 0)
    with pytest.raises(AuditError, match="has been deleted"):
        log.feedback(f"{0:016x}", 0)


def test_threads_share_a_log_and_no_line_is_broken(tmp_path):
    log = write(tmp_path, [])
    work = [threading.Thread(target=lambda k=k: [log.write([pair(100 * k + i)]) for i in range(100)]) for k in range(8)]
    for thread in work:
        thread.start()
    for thread in work:
        thread.join()
    assert (len(read_audits(tmp_path)), read_audits(tmp_path).left_out, log.pairs) == (800, (), 800)


def test_pairs_are_written_while_the_ids_of_a_folder_are_read(tmp_path, monkeypatch):
    write(tmp_path, [pair(1)]).close()
    log, reading, go_on = write(tmp_path, []), threading.Event(), threading.Event()
    read = AuditLog._read_ids

    def slowly(self):
        reading.set()
        assert go_on.wait(20)
        return read(self)

    monkeypatch.setattr(AuditLog, "_read_ids", slowly)
    labels = threading.Thread(target=log.feedback, args=(f"{1:016x}", 2))
    labels.start()
    assert reading.wait(20)
    log.write([pair(2)])  # no answer waits for a label
    go_on.set()
    labels.join()
    log.write([pair(3)])
    for number in (2, 3):
        log.feedback(f"{number:016x}", 0)
    assert read_audits(tmp_path).label.tolist() == [2, 0, 0]


def test_a_kill_loses_at_most_the_last_line(tmp_path):
    script = (
        "import sys; sys.path[:0] = sys.argv[2:]\nfrom made_audits import pair, write\nlog = write(sys.argv[1], [])\n"
    )
    script += "i = 0\nwhile True:\n    log.write([pair(i)]); i += 1; print(i, flush=True)\n"
    support = os.path.dirname(sys.modules["made_audits"].__file__)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), support], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        told += [int(line) for line in process.stdout.read().split() if line]
    pairs = read_audits(tmp_path)
    assert len(pairs) >= told[-1]
    assert sum(each.count for each in pairs.left_out) <= 1


@contextmanager
def full_disk(size):
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_loses_pairs_not_answers_and_later_ones_are_kept(tmp_path, caplog):
    log = write(tmp_path, [pair(1)])
    (path,) = files(tmp_path)
    with full_disk(path.stat().st_size + 10):
        log.write([pair(2)])
    with full_disk(10):
        log.write([pair(3), pair(4)])
        with pytest.raises(AuditError, match="cannot write the label"):
            log.feedback(f"{1:016x}", 0)
    assert (log.pairs, log.lost, caplog.text.count("pairs are lost")) == (1, 3, 1)
    log.write([pair(5)])
    pairs = read_audits(tmp_path)
    assert pairs.id == (f"{1:016x}", f"{5:016x}")
    assert [each.reason for each in pairs.left_out] == ["the last line is cut off"]
