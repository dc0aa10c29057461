"""A bundle's folder appears in one piece, and nobody else's is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_maker import copied
from clouds import scores
from commands import environment, files_of
from waiting import STUCK

import l2h
from l2h import Costs, HelpSystem
from l2h.bundle import BundleError, DeviceBundle, Manifest
from l2h.bundle.writing import put_in_place
from l2h.export import ExportError

Systems = Callable[[str], HelpSystem]
Bundles = Callable[[str], Path]


def test_a_folder_that_is_taken_is_left_as_it_is(systems: Systems, bundles: Bundles, tmp_path: Path) -> None:
    system, taken = systems("callable"), tmp_path / "taken"
    taken.mkdir()
    (taken / "notes.txt").write_text("mine")
    file = tmp_path / "file"
    file.write_text("mine")
    bundle = copied(bundles("callable"), tmp_path / "bundle")
    before = files_of(bundle)
    for target, force, words in (
        (taken, False, "holds no bundle"),
        (taken, True, "holds no bundle"),
        (file, True, "is a file"),
        (bundle, False, "--force"),
    ):
        with pytest.raises(ExportError, match=words):
            system.export(target, force=force)
    (bundle / "notes.txt").write_text("mine")
    with pytest.raises(ExportError, match=r"also holds notes\.txt"):
        system.export(bundle, force=True)
    assert files_of(bundle) == {**before, "notes.txt": b"mine"}
    assert files_of(taken) == {"notes.txt": b"mine"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle", "file", "taken"], "nothing is left behind"


def test_force_replaces_a_bundle_and_old_leftovers_go(systems: Systems, bundles: Bundles, tmp_path: Path) -> None:
    bundle = copied(bundles("sklearn"), tmp_path / "bundle")
    for age, name in ((10**5, ".bundle.aa.tmp"), (0, ".bundle.bb.tmp"), (10**5, ".bundle-2.cc.tmp")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    again = systems("callable").export(bundle, name="other", costs=Costs(c_e=0.3), force=True)
    assert not (bundle / "client.onnx").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".bundle-2.cc.tmp", ".bundle.bb.tmp", "bundle"]
    assert Manifest.read(bundle) == again
    assert (again.name, again.costs) == ("other", Costs(c_e=0.3))
    assert DeviceBundle(bundle, client=scores).which(None) == (0, Costs(c_e=0.3))
    first = Manifest.read(bundles("callable"))
    assert (again.version, again.files) == (first.version, first.files), "the same system gives the same version"


def parts_of(bundle: Path) -> tuple[dict[str, bytes], Manifest]:
    manifest = Manifest.read(bundle)
    return {name: (bundle / name).read_bytes() for name in manifest.files}, manifest


def test_a_place_that_cannot_be_written_is_refused(bundles: Bundles, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="cannot write the bundle"):
        put_in_place(*parts_of(bundles("callable")), tmp_path / "file" / "below" / "bundle", force=False)


def test_an_empty_folder_and_a_link_to_one_are_filled(bundles: Bundles, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    put_in_place(*parts_of(bundles("callable")), tmp_path / "link", force=False)
    assert (tmp_path / "link").is_symlink()
    assert files_of(tmp_path / "real") == files_of(bundles("callable"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_a_reader_finds_none_or_a_whole_bundle_while_it_is_replaced(bundles: Bundles, tmp_path: Path) -> None:
    files, manifest = parts_of(bundles("callable"))
    target, wrong, stop = tmp_path / "bundle", [], threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                DeviceBundle(target, client=scores)
            except BundleError as error:
                # The folder may be moved between the opening of two of its files: then the reader says what is missing.
                if "is missing" not in str(error):
                    wrong.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20):
        put_in_place(files, manifest, target, force=True)
    stop.set()
    reader.join()
    assert not wrong
    DeviceBundle(target, client=scores)


@pytest.mark.long
def test_a_killed_export_leaves_none_or_a_whole_bundle(tmp_path: Path) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(Path(l2h.__file__).parents[1]), str(here.parent / "support")])
    done = subprocess.run(
        [sys.executable, str(here / "export_process.py"), str(tmp_path)],
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=STUCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(reports) == 3 + 25 + 1
    assert {report["target"] for report in reports} <= {"none", "whole"}
    kinds = Counter((report["kind"], report["target"]) for report in reports)
    assert kinds["export", "none"] >= 1, "what is still computing has written nothing"
    assert sum(report["early"] for report in reports) >= 25, "they really were killed"
    assert any(report["left"] for report in reports), "some in the middle of writing"
    assert reports[-1]["target"] == "whole", "and they are not in the way of the next"
