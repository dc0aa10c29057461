"""Files from a stranger: a bundle that names other files, archives that unpack to gigabytes, files without an end."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow
import pytest
from bundle_maker import copied, edit, onnx_file
from clouds import samples
from manifest_digest import with_digest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from pyarrow import parquet
from scipy.io import savemat
from serving_maker import CLASSES, SHAPE, linear, write_bundle
from this_platform import VERSION_0_1

import l2h
from l2h.bundle import BundleError, DeviceBundle, Manifest, ServerBundle
from l2h.bundle.writing import check_target
from l2h.classifiers import OnnxClassifier
from l2h.classifiers.external import external_files
from l2h.data.load import read_inputs
from l2h.edge.options import EdgeSettingsError, read_key
from l2h.errors import ClientError, DataError, L2HError, RunError, SettingsError
from l2h.export.classifiers import export_client
from l2h.files import read_config
from l2h.protocol import DATATYPES, WireError, decode_request, numpy_type
from l2h.serving.accounts.keyfile import KeyFile
from l2h.serving.errors import KeyStoreError
from l2h.training.exchange import ExchangeError, SnapshotStore
from l2h.training.exchange.downloads import DownloadFolder
from l2h.training.hosts import read_token

SECRET = b"words"


@contextmanager
def limited(memory: int = 100 * 2**20, seconds: float = 20) -> Iterator[None]:
    """Inside, this process gets no more than so much memory beside what it has, and no more than so much time."""
    words = Path("/proc/self/status").read_text().split()
    has = int(words[words.index("VmSize:") + 1]) * 1024
    before = resource.getrlimit(resource.RLIMIT_AS)

    def late(*_: Any) -> None:
        raise AssertionError(f"not done after {seconds} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (has + memory, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def outside(location: str) -> TensorProto:
    """A tensor of five bytes that lie in another file."""
    tensor = TensorProto(name="secret", data_type=TensorProto.UINT8, dims=[CLASSES])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", str(CLASSES))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def stealing(place: str, location: str = "secret.bin") -> bytes:
    """A model whose scores are the bytes of another file, which it names in a certain place."""
    tensor = outside(location)
    model = onnx.load_from_string(linear())
    graph = model.graph
    (product,) = (node for node in graph.node if "scores" in node.output)
    product.output[0] = "product"
    zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    graph.initializer.append(zero)
    constant = helper.make_node("Constant", [], ["secret"], value=tensor)
    if place == "weight":
        graph.initializer.append(tensor)
    elif place == "constant":
        graph.node.append(constant)
    elif place == "subgraph":
        out = helper.make_tensor_value_info("inner", TensorProto.UINT8, [CLASSES])
        branch = helper.make_graph([helper.make_node("Identity", ["secret"], ["inner"])], "b", [], [out], [tensor])
        graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        graph.node.append(helper.make_node("If", ["yes"], ["secret"], then_branch=branch, else_branch=branch))
    elif place == "sparse":
        rows = numpy_helper.from_array(np.arange(CLASSES), "rows")
        graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor, indices=rows, dims=[CLASSES]))
    else:
        imports = [helper.make_opsetid("", 17)]
        model.functions.append(helper.make_function("d", "Steal", [], ["secret"], [constant], imports))
        model.opset_import.append(helper.make_opsetid("d", 1))
        graph.node.append(helper.make_node("Steal", [], ["secret"], domain="d"))
    graph.node.append(helper.make_node("Cast", ["secret"], ["words"], to=TensorProto.FLOAT))
    graph.node.append(helper.make_node("Mul", ["product", "zero"], ["nothing"]))
    graph.node.append(helper.make_node("Add", ["nothing", "words"], ["scores"]))
    return model.SerializeToString()


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of whoever loads a bundle, with a file that is none of the bundle's business."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "secret.bin").write_bytes(SECRET)
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("place", ["weight", "constant", "subgraph", "sparse", "function"])
def test_a_model_that_names_a_file_outside_its_bundle_is_refused_before_it_is_loaded(
    place: str, beside: Path, tmp_path: Path
) -> None:
    write_bundle(tmp_path / "bundle", stealing(place))
    with pytest.raises(BundleError, match=r"server\.onnx .* file"):
        assert ServerBundle(tmp_path / "bundle").run(np.zeros(SHAPE, np.uint8)) is None, "it gave the file away"


LOCATIONS = ["", ".", "../secret.bin", "./secret.bin", "/etc/hostname", "x/../secret.bin", "*/_ORT_MEM_ADDR_/*", "\0"]


@pytest.mark.parametrize("location", LOCATIONS)
def test_no_name_leads_out_of_a_bundle(location: str, beside: Path, tmp_path: Path) -> None:
    write_bundle(tmp_path / "bundle", stealing("weight", location))
    with pytest.raises(BundleError, match="not among the files"):
        ServerBundle(tmp_path / "bundle")


def test_the_device_half_is_as_strict(beside: Path, tmp_path: Path) -> None:
    for name in ("client.onnx", "rejector.onnx"):
        folder = copied(VERSION_0_1 / "priced-bundle", tmp_path / name)
        model = onnx.load(folder / name)
        model.graph.initializer.append(outside("secret.bin"))
        replace_file(folder, name, model.SerializeToString())
        with pytest.raises(BundleError, match=rf"{name} .*'secret\.bin', .*not among the files"):
            DeviceBundle(folder)


def replace_file(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    entry = {"sha256": sha256(data).hexdigest(), "bytes": len(data)}
    edit(folder, lambda values: values["files"].setdefault(name, {"side": "server"}).update(entry))


def test_weights_in_a_file_that_the_manifest_lists_are_those_of_the_bundle(beside: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    write_bundle(folder, stealing("weight"))
    replace_file(folder, "secret.bin", b"other")
    scores = ServerBundle(folder).run(np.ones((2, *SHAPE), np.uint8))
    assert bytes(scores.astype(np.uint8)[1]) == b"other", "not what lies in the working folder"
    (folder / "secret.bin").write_bytes(b"Other")
    with pytest.raises(BundleError, match=r"secret\.bin is damaged"):
        ServerBundle(folder)
    replace_file(folder, "secret.bin", b"oth")
    with pytest.raises(BundleError, match=r"server\.onnx cannot be loaded"):
        ServerBundle(folder)
    edit(folder, lambda values: values["files"]["secret.bin"].update(side="device"))
    with pytest.raises(BundleError, match="not among the files"):
        ServerBundle(folder)


def test_a_model_that_only_speaks_of_a_location_is_loaded(tmp_path: Path) -> None:
    model = onnx.load_from_string(linear())
    model.doc_string, model.graph.node[0].name = "location", "location"
    model.metadata_props.add(key="location", value="/etc/hostname")
    write_bundle(tmp_path, model.SerializeToString())
    x = np.ones(SHAPE, np.uint8)
    write_bundle(tmp_path / "plain", linear())
    np.testing.assert_array_equal(ServerBundle(tmp_path).run(x), ServerBundle(tmp_path / "plain").run(x))


def test_a_file_in_the_format_of_onnxruntime_itself_is_refused(tmp_path: Path) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(linear(), options, providers=["CPUExecutionProvider"])
    write_bundle(tmp_path, (tmp_path / "model.ort").read_bytes())
    with pytest.raises(BundleError, match=r"server\.onnx cannot be loaded"):
        ServerBundle(tmp_path)


def split_client(folder: Path) -> Path:
    """An ONNX client whose weights lie in a file beside it, as exporters write large ones."""
    path = onnx_file(folder)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), "unused"))
    model.graph.node.append(helper.make_node("Identity", ["unused"], ["also"]))
    model.graph.output.append(helper.make_tensor_value_info("also", TensorProto.FLOAT, [4]))
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_a_client_finds_its_weights_beside_it_and_nowhere_else(beside: Path, tmp_path: Path) -> None:
    path = split_client(tmp_path)
    (beside / "weights.bin").write_bytes(b"not these")
    client = OnnxClassifier(path)
    assert b"".join(client.weights()[1:]) == (tmp_path / "weights.bin").read_bytes()
    before = client.fingerprint()
    (tmp_path / "weights.bin").write_bytes(bytes([1] * 16))
    assert OnnxClassifier(path).fingerprint() != before, "the weights are part of the client"
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ClientError, match=r"weights\.bin"):
        OnnxClassifier(path)
    (tmp_path / "steal.onnx").write_bytes(stealing("weight", "work/secret.bin"))
    with pytest.raises(ClientError, match=r"'work/secret\.bin'"):
        OnnxClassifier(tmp_path / "steal.onnx")


def test_a_client_with_weights_beside_it_gets_them_into_its_file_of_a_bundle(tmp_path: Path) -> None:
    client = OnnxClassifier(split_client(tmp_path))
    exported = export_client(client, 3, False, [samples(n, 0)[0] for n in (1, 3, 17)])
    assert not external_files(exported.data)
    weights = {
        tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load_from_string(exported.data).graph.initializer
    }
    np.testing.assert_array_equal(weights["unused"], np.zeros(4))


def bomb(size: int, **arrays: np.ndarray) -> bytes:
    """An archive of samples that are all zero, a thousandth of their size."""
    out = io.BytesIO()
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (size // 1024, 1024)}
    )
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("X.npy", "w") as file:
            file.write(header.getvalue())
            for _ in range(size // 2**20):
                file.write(bytes(2**20))
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.save(file, array)
    return out.getvalue()


def test_a_small_archive_of_large_arrays_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    packed = bomb(2**27, y=np.arange(5))
    assert len(packed) < 2**20
    (tmp_path / "bomb.npz").write_bytes(packed)
    for read in (l2h.load_dataset, lambda path: read_inputs(str(path), (1,))):
        with limited(), pytest.raises(DataError, match=r"bomb\.npz.* take 134\d+ bytes.*savez"):
            read(tmp_path / "bomb.npz")


def packed_tar(folder: Path) -> Path:
    """Batches in CIFAR's layout whose bytes are all zero."""
    path = folder / "data.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for i in range(1, 6):
            entry = tarfile.TarInfo(f"data_batch_{i}")
            entry.size = 2**24
            tar.addfile(entry, io.BytesIO(bytes(entry.size)))
    return path


def packed_mat(folder: Path) -> Path:
    path = folder / "data.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 24_000), np.uint8), "y": np.ones((24_000, 1))}, do_compression=True)
    return path


def packed_parquet(folder: Path) -> Path:
    """One image, filled up to a mebibyte, which every row names."""
    path = folder / "data.parquet"
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "PNG")
    image = {"bytes": picture.getvalue().ljust(2**20, b"\0"), "path": None}
    column = pyarrow.array([image] * 16, pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}))
    writer = None
    for _ in range(8):
        table = pyarrow.table({"image": column, "label": [0] * 16})
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()
    return path


@pytest.mark.parametrize("pack", [packed_tar, packed_mat, packed_parquet])
def test_a_small_file_of_many_images_is_refused_before_they_are_in_memory(pack: Any, tmp_path: Path) -> None:
    path = pack(tmp_path)
    assert path.stat().st_size < 2**21
    with limited(400 * 2**20), pytest.raises(DataError, match=r"data\.\w+.* its arrays take \d+ bytes, more than \d+"):
        l2h.load_dataset(path, cache=False)


def test_an_archive_that_packs_well_is_read(tmp_path: Path) -> None:
    y = np.arange(2**14) % 2
    np.savez_compressed(tmp_path / "data.npz", X=np.zeros((len(y), 1024), np.uint8), y=y)
    assert (tmp_path / "data.npz").stat().st_size < 2**16
    assert len(l2h.load_dataset(tmp_path / "data.npz", cache=False).X_train) > 13_000
    np.savez(tmp_path / "plain.npz", X=np.zeros((len(y), 1, 64, 80), np.uint8), y=y)
    assert len(l2h.load_dataset(tmp_path / "plain.npz", cache=False).X_train) > 13_000, "80 MiB, as is its file"


@pytest.mark.parametrize("suffix", ["npy", "npz"])
@pytest.mark.parametrize("shape", ["(99999999999, 8)", "(1, 8)", "(9999999999999999999, 8)", "(-5, -8)", "(5, 8, 0)"])
def test_an_array_is_as_large_as_its_file_says(shape: str, suffix: str, tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(160)
    path = tmp_path / f"data.{suffix}"
    path.write_bytes(array)
    if suffix == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("X.npy", array)
    with limited(), pytest.raises(DataError, match="data"):
        read_inputs(str(path), (8,))


def test_held_out_scores_are_no_larger_than_their_file(tmp_path: Path) -> None:
    folder = copied(VERSION_0_1 / "priced-bundle", tmp_path / "bundle")
    n, packed = 2**24, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("scores.npy", "w") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1, n, 2)}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(n * 8 // 2**20):
            file.write(bytes(2**20))
    replace_file(folder, "calibration.npz", packed.getvalue())
    edit(folder, lambda values: values["calibration"].update(n=n))
    with limited(), pytest.raises(BundleError, match=r"calibration\.npz.* take \d+ bytes"):
        DeviceBundle(folder)


def test_a_label_does_not_make_a_billion_classes(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", X=np.eye(9, dtype=np.float32), y=np.array([0, 1, 10**9] * 3))
    with limited():
        assert l2h.load_dataset(tmp_path / "data.npz").num_classes == 3


ENDLESS: dict[str, Callable[[Path], object]] = {
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a hole": lambda path: (path.touch(), os.truncate(path, 2**40)),
    "brackets": lambda path: path.write_bytes(b"[" * 200_000),
}
#: Everything that reads a file from outside as a whole: the name of the file, how it is read, what is raised.
READERS: dict[str, tuple[str, Callable[[Path], Any], type[L2HError]]] = {
    "the manifest of a bundle": ("manifest.json", Manifest.read, BundleError),
    "the target of an export": ("manifest.json", lambda folder: check_target(folder, False), L2HError),
    "a file of a bundle": ("server.onnx", ServerBundle, BundleError),
    "the settings of a run": ("config.json", read_config, RunError),
    "a saved system": ("config.json", l2h.load, RunError),
    "the keys of a server": ("keys.json", lambda folder: KeyFile(folder / "keys.json").read(), KeyStoreError),
    "the key of a device": ("key", lambda folder: read_key(folder / "key"), EdgeSettingsError),
    "the token of two hosts": ("token", lambda folder: read_token(folder / "token"), SettingsError),
    "the run of a publisher": ("run.json", SnapshotStore, ExchangeError),
    "a data set": ("data.npz", lambda folder: l2h.load_dataset(folder / "data.npz"), DataError),
    "an ONNX client": ("client.onnx", lambda folder: OnnxClassifier(folder / "client.onnx"), ClientError),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.filterwarnings("ignore::l2h.errors.L2HWarning")
def test_a_file_without_an_end_is_not_read_to_the_end(reader: str, kind: str, tmp_path: Path) -> None:
    name, read, error = READERS[reader]
    if kind == "a pipe" and name in ("key", "token"):
        pytest.skip("a shell gives such a file as a pipe: it is read as far as a key may be long")
    if name == "server.onnx":
        write_bundle(tmp_path, b"")
    (tmp_path / name).unlink(missing_ok=True)
    ENDLESS[kind](tmp_path / name)
    with limited(), pytest.raises(error):
        read(tmp_path)


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_download_begins_again_whatever_an_earlier_one_left(kind: str, tmp_path: Path) -> None:
    for name in ("weights.json", "weights.part.json", "weights-00000001.json"):
        ENDLESS[kind](tmp_path / name)
    identity = {"classes": 3, "input_shape": [4]}
    with limited():
        assert DownloadFolder(tmp_path, "weights", identity).current is None
        assert SnapshotStore(tmp_path).latest("weights") is None


def test_a_manifest_needs_its_digest(tmp_path: Path) -> None:
    write_bundle(tmp_path, linear())
    path = tmp_path / "manifest.json"
    values = json.loads(path.read_text())
    del values["digest"]
    path.write_text(json.dumps(values))
    with pytest.raises(BundleError, match=r"manifest\.json.*digest"):
        Manifest.read(tmp_path)
    path.write_text(with_digest(values))
    Manifest.read(tmp_path)


@pytest.mark.parametrize("kind", DATATYPES)
def test_true_is_no_number_and_a_number_is_not_true(kind: str) -> None:
    first, odd = (True, 1) if kind == "BOOL" else (1, True)
    for data in ([first, odd, first], [odd, first, first], [[first, first, odd]], [odd] * 3):
        shape = [1, 3] if isinstance(data[0], list) else [3]
        body = json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": kind, "data": data}]})
        with pytest.raises(WireError, match=f"does not fit the datatype {kind}"):
            decode_request(body.encode())
    entry = {"name": "true", "shape": [2], "datatype": kind, "data": [first, first]}
    body = json.dumps({"inputs": [entry], "parameters": {"binary_data_output": True}})
    assert decode_request(body.encode()).inputs[0].data.tolist() == np.ones(2, numpy_type(kind)).tolist()
