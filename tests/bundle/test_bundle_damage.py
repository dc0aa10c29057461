"""A bundle that is not whole, not as it was written, or not for this version is refused, with the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundle_maker import TABLE_TEST, copied, edit
from manifest_digest import with_digest

from l2h.bundle import BundleError, DeviceBundle, Manifest, ServerBundle
from l2h.bundle.manifest import read_files
from l2h.errors import L2HError

Bundles = Callable[[str], Path]
DEVICE = ("client.onnx", "rejector.onnx", "calibration.npz")
SIDES = {**dict.fromkeys(DEVICE, "device"), "server.onnx": "server"}
LOADS: dict[str, Callable[[Path], Any]] = {"device": DeviceBundle, "server": ServerBundle}


@pytest.fixture
def folder(bundles: Bundles, tmp_path: Path) -> Path:
    return copied(bundles("sklearn"), tmp_path / "bundle")


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", [*SIDES, "manifest.json"])
def test_no_flipped_bit_goes_unnoticed(name: str, folder: Path) -> None:
    path = folder / name
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    every = {0, 1, len(whole) - 1, *rng.integers(0, len(whole), 400 if name == "manifest.json" else 60).tolist()}
    for at in sorted(every):
        flip(path, at, int(rng.integers(8)))
        with pytest.raises(BundleError, match=r"manifest\.json|" + name):
            read_files(folder, Manifest.read(folder), SIDES.get(name, "device"))
        path.write_bytes(whole)
    for side in LOADS:
        read_files(folder, Manifest.read(folder), side)


@pytest.mark.parametrize("name", SIDES)
def test_a_damaged_file_is_named_by_whoever_loads_it(name: str, folder: Path) -> None:
    flip(folder / name, 20, 3)
    with pytest.raises(BundleError, match=rf"{name} is damaged: its SHA-256 begins \w+, the manifest says"):
        LOADS[SIDES[name]](folder)


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.999])
def test_a_file_that_was_cut_short_is_refused(name: str, kept: float, folder: Path) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(kept * len(data))])
    with pytest.raises(BundleError, match=rf"{name} is damaged: it has {int(kept * len(data))} bytes.*{len(data)}"):
        LOADS[SIDES[name]](folder)


@pytest.mark.parametrize("name", SIDES)
def test_a_missing_file_is_refused_by_its_side_alone(name: str, folder: Path) -> None:
    (folder / name).unlink()
    side = SIDES[name]
    with pytest.raises(BundleError, match=f"{name} is missing"):
        LOADS[side](folder)
    LOADS["server" if side == "device" else "device"](folder)
    (folder / name).mkdir()
    with pytest.raises(BundleError, match=name):
        LOADS[side](folder)


def test_each_half_works_without_the_other(bundles: Bundles, tmp_path: Path) -> None:
    whole = bundles("sklearn")
    for side, names in (("device", DEVICE), ("server", ("server.onnx",))):
        (tmp_path / side).mkdir()
        for name in ("manifest.json", *names):
            shutil.copy(whole / name, tmp_path / side / name)
    X = TABLE_TEST[0]
    label, judgement = DeviceBundle(tmp_path / "device").judge(X)
    expected = DeviceBundle(whole).judge(X)
    np.testing.assert_array_equal(label, expected[0])
    np.testing.assert_array_equal(judgement.scores, expected[1].scores)
    np.testing.assert_array_equal(ServerBundle(tmp_path / "server").run(X), ServerBundle(whole).run(X))


@pytest.mark.parametrize("folder_name", ["nowhere", "empty", "file"])
def test_where_there_is_no_bundle_the_message_says_how_to_get_one(folder_name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for load in (DeviceBundle, ServerBundle, Manifest.read):
        with pytest.raises(BundleError, match=folder_name):
            load(tmp_path / folder_name)
    with pytest.raises(BundleError, match="l2h export"):
        DeviceBundle(tmp_path / "empty")


def test_a_newer_schema_asks_for_an_upgrade(folder: Path) -> None:
    edit(folder, lambda values: values.update(schema=4, brand_new=True))
    for load in (DeviceBundle, ServerBundle):
        with pytest.raises(BundleError, match=r"written by a newer version.*schema 4.*upgrade"):
            load(folder)


@pytest.mark.parametrize(
    "text", ["", "{", "null", "[]", '"x"', "{}", '{"schema": 1}', "\xff", '{"schema": NaN}', "[" * 100_000]
)
def test_a_manifest_that_is_none_is_refused(text: str, folder: Path) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BundleError, match=r"manifest\.json is damaged"):
        Manifest.read(folder)


NAMES = ["../client.onnx", "..", "/etc/passwd", "a/b.onnx", "a\\b.onnx", "", ".hidden", "C:x", "x\0y", "-x", "é.onnx"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_leave_the_folder_are_refused(name: str, folder: Path) -> None:
    (folder.parent / "client.onnx").write_bytes((folder / "client.onnx").read_bytes())

    def change(values: dict[str, Any]) -> None:
        values["files"][name] = values["files"].pop("client.onnx")
        values["client"]["file"] = name

    edit(folder, change)
    with pytest.raises(BundleError, match=r"its own folder"):
        DeviceBundle(folder)


def keys(values: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The path of every key below."""
    if not isinstance(values, dict):
        return []
    return [found for key, below in values.items() for found in ((*path, key), *keys(below, (*path, key)))]


def at(values: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path[:-1]:
        values = values[key]
    return values


OPTIONAL = {"agreement", "int8_measured"}


def test_no_key_may_be_missing_or_of_another_type(folder: Path) -> None:
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    del whole["digest"]
    for place in keys(whole):
        changed = json.loads(json.dumps(whole))
        before = at(changed, place).pop(place[-1])
        if not OPTIONAL & set(place):
            path.write_text(with_digest(changed))
            with pytest.raises(BundleError, match=place[-1]):
                Manifest.read(folder)
        for wrong in (12.5, {"a": 1}, [], True, "", [None]):
            if type(wrong) is type(before) or (isinstance(before, float | int) and wrong == 12.5):
                continue
            if place[-1] in ("int8_measured", "calibration") or (place[-1] == "agreement" and isinstance(wrong, dict)):
                continue
            at(changed, place)[place[-1]] = wrong
            path.write_text(with_digest(changed))
            with pytest.raises(L2HError):
                Manifest.read(folder)
    path.write_text(with_digest(whole))
    Manifest.read(folder)


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "unknown key 'colour'": lambda v: v.update(colour="red"),
    "'side' is 'moon', expected .*device.server": lambda v: v["files"]["server.onnx"].update(side="moon"),
    "not among the files of the device": lambda v: v["rejector"].update(file="server.onnx"),
    "not among the files of the server": lambda v: v["server"].update(file="rejector.onnx"),
    "sha256": lambda v: v["files"]["server.onnx"].update(sha256="abc"),
    "dtype": lambda v: v["input"].update(dtype="object"),
    "shape": lambda v: v["input"].update(shape=[4, -1]),
    "'feed' is 'raw', expected .*as_is.unit_range.flat": lambda v: v["client"].update(feed="raw"),
    "gives": lambda v: v["client"].update(gives="text"),
    "platt": lambda v: v["rejector"].update(platt=[]),
    "'platt' is .*, expected `float`, got `null`": lambda v: v["rejector"].update(platt=[[[1.0, None], [1.0, 0.0]]]),
    "'platt' is .*, expected one pair for each of 2 answerers": lambda v: v["rejector"].update(platt=[[[1.0, 0.0]]]),
    "one for each of 1": lambda v: v["rejector"].update(platt=v["rejector"]["platt"] * 2),
    "costs": lambda v: v["costs"].update(c_e=-1.0),
    "classes": lambda v: v.update(classes=["only"]),
    "'name' is '../../etc', expected .*A-Za-z0-9": lambda v: v.update(name="../../etc"),
}


@pytest.mark.parametrize("words", CHANGES)
def test_values_that_make_no_sense_are_named(words: str, folder: Path) -> None:
    edit(folder, CHANGES[words])
    with pytest.raises(BundleError, match=words):
        Manifest.read(folder)


def test_a_manifest_that_lies_about_its_graphs_is_refused(folder: Path) -> None:
    def lie(values: dict[str, Any]) -> None:
        values["rejector"]["fused"] = True
        values["server"]["output"] = "label"

    edit(folder, lie)
    with pytest.raises(BundleError, match=r"rejector\.onnx takes .* expected"):
        DeviceBundle(folder)
    with pytest.raises(BundleError, match=r"server\.onnx takes .* expected x and label"):
        ServerBundle(folder)


@pytest.mark.parametrize("garbage", [b"", b"not a model", b"\x08\x07" * 50])
def test_a_file_that_is_no_model_is_refused_even_if_it_is_the_manifests(garbage: bytes, folder: Path) -> None:
    from hashlib import sha256

    for name in ("rejector.onnx", "server.onnx", "calibration.npz"):
        other = copied(folder, folder.parent / name)
        (other / name).write_bytes(garbage)
        entry = {"sha256": sha256(garbage).hexdigest(), "bytes": len(garbage)}
        edit(other, lambda values, name=name, entry=entry: values["files"][name].update(entry))
        with pytest.raises(BundleError, match=name):
            LOADS[SIDES[name]](other)


def test_sides_and_threads_are_checked(folder: Path) -> None:
    with pytest.raises(BundleError, match="moon"):
        read_files(folder, Manifest.read(folder), "moon")
    for threads in (0, -1, True, 1.5):
        with pytest.raises(BundleError, match="threads"):
            DeviceBundle(folder, threads=threads)
    X = TABLE_TEST[0]
    np.testing.assert_allclose(ServerBundle(folder, threads=2).run(X), ServerBundle(folder).run(X), atol=1e-5)


def test_a_manifest_reads_back_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(folder)
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (folder / "manifest.json").read_bytes()
