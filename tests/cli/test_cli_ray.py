"""``--on ray``: a cluster computes what this machine computes, lost nodes cost time only, and errors are one line."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import Result, assert_told, call, command, environment, execute, files_of, start
from scripts import blocking, python
from waiting import STUCK, free_port, until

import l2h
from l2h import methods
from l2h.cli import compare
from l2h.errors import RunError, SettingsError
from l2h.experiments.clusters import ClusterWork, ray_cluster
from l2h.experiments.compare.comparing import Tell
from l2h.experiments.compare.distributed import method_groups
from l2h.settings import Settings

pytestmark = pytest.mark.usefixtures("no_pictures")
FEW = [part for name in ("all-local", "confidence", "lwa-separate", "priced-attached", "oracle")
       for part in ("--method", name)]  # fmt: skip
QUICK = [
    *("--client", "tree", "--client-share", "0.3", "--calibration", "0.2"),
    *("--set", "server.epochs=2", "--set", "rejector.epochs=2", "--set", "folds=2"),
]
ONE_SERVER = ["--server", "mlp", "--c-1", "1", "--c-e", "0.05", "--c-e", "0.2"]


def words(table: Path, out: Path, *more: object, seeds: int = 3) -> list[object]:
    return ["compare", "--data", table, *QUICK, *ONE_SERVER, *FEW, "--seeds", seeds, "--out", out, *more]


@pytest.fixture(scope="module")
def compared(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison on this machine, without Ray."""
    folder = tmp_path_factory.mktemp("compare") / "here"
    result = call(*words(table, folder, "--jobs", 1))
    assert result.status == 0, result.err
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes with a CPU each, which RAY_ADDRESS names; gives their address for clients."""
    from ray_nodes import ray_nodes

    port = free_port()
    with ray_nodes(port=port):
        yield f"ray://127.0.0.1:{port}"


def assert_same_results(one: Path, other: Path) -> None:
    """The files of the seeds and the rows are the same to the byte."""
    assert files_of(one / "seeds") == files_of(other / "seeds")
    assert (one / "rows.csv").read_bytes() == (other / "rows.csv").read_bytes()
    first, second = (json.loads((folder / "comparison.json").read_text()) for folder in (one, other))
    for found in (first, second):
        found.pop("command")
        found["settings"]["settings"].pop("threads")  # how it was computed, not what
    assert first == second


# Without a cluster.


@pytest.mark.parametrize(
    ("on", "status", "told"),
    [
        (["--on", "spark", "--data", "missing.npz"], 2, ["--on spark", "ray://HOST:10001"]),
        (["--on", "ray://"], 2, ["--on ray://"]),
        (["--on", "ray", "--jobs", "2"], 2, ["--jobs", "cluster"]),
        (["--on", "ray://127.0.0.1:9"], 1, ["ray://127.0.0.1:9", "Connection refused", "ray start --head"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and value[0] == "--on" else "",
)
def test_what_cannot_be_is_refused_in_one_line(
    on: list[str], status: int, told: list[str], table: Path, tmp_path: Path
) -> None:
    assert_told(call(*words(table, tmp_path / "run", *on)), status, *told)
    assert not (tmp_path / "run").exists()


def test_an_address_of_the_environment_that_nobody_answers_at(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    assert_told(call(*words(table, tmp_path / "run", "--on", "ray")), 1, "127.0.0.1:9", "cannot be reached")


def test_without_ray_the_extra_is_named_and_the_commands_are_there(table: Path, tmp_path: Path) -> None:
    script = "import sys; from l2h.cli.app import run; sys.exit(run(sys.argv[1:]))"
    done = python(script, *words(table, tmp_path / "run", "--on", "ray"), blocked=("ray",))
    assert_told(Result(done.returncode, done.stdout, done.stderr), 1, "package 'ray'", "[ray]")
    assert not (tmp_path / "run").exists()


def test_groups_hold_every_method_once_and_nets_are_trained_apart() -> None:
    names = methods.known()
    groups = method_groups(names)
    assert sorted(name for group in groups for name in group) == sorted(names)
    learned = {method.name for method in methods.get(names) if isinstance(method, methods.Learned)}
    assert [set(group) for group in groups if len(group) > 1] == [set(names) - learned]


# On two nodes.


@pytest.mark.long
def test_two_nodes_compute_what_one_machine_does_and_go_on_with_what_it_left(
    cluster: str, compared: Path, table: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert call(*words(table, folder, "--jobs", 1, seeds=1)).status == 0
    result = call(*words(table, folder, "--on", "ray", "--json"))
    assert result.status == 0, result.err
    assert "holds seed 0 already: not run again" in result.err
    assert "nodes: 2, CPUs: 2, GPUs: 0" in result.err
    assert all(f"seed 2: {what} done" in result.err for what in ("server", "priced-attached", "oracle"))
    assert json.loads(result.out)["seeds"] == [0, 1, 2]
    assert_same_results(folder, compared)


@pytest.mark.long
def test_a_client_of_the_cluster_gets_the_same(cluster: str, compared: Path, table: Path, tmp_path: Path) -> None:
    result = execute(*words(table, tmp_path / "run", "--on", cluster))
    assert result.status == 0, result.err
    assert_same_results(tmp_path / "run", compared)


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "more"),
    [
        ("crossed.csv", ["--crossed", *ONE_SERVER, "--budget", "20k", "--rate", "0.01", "--method", "priced-attached"]),
        (
            "several.csv",
            ["--server", "box=mlp", "--server", "cloud=mlp", "--price", "box=0.05", "--price", "cloud=0.1"],
        ),
    ],
)
def test_other_kinds_of_comparison_are_the_same(
    cluster: str, file: str, more: list[str], table: Path, tmp_path: Path
) -> None:
    """Rows come in any order, with other seconds; what they say does not change."""
    found = []
    for on in ([], ["--on", "ray"]):
        folder = tmp_path / f"run-{len(found)}"
        result = call(
            "compare",
            "--data",
            table,
            *QUICK,
            *more,
            *on,
            "--set",
            "threads=1",
            "--seeds",
            2,
            "--json",
            "--out",
            folder,
        )
        assert result.status == 0, result.err
        with (folder / file).open(newline="") as rows:
            found.append(
                (
                    sorted(str(row | {"seconds": None}) for row in csv.DictReader(rows)),
                    result.json() | {"command": None},
                )
            )
    assert found[0] == found[1]


@pytest.mark.long
def test_what_the_cluster_lacks_is_refused_before_anything_is_written(
    cluster: str, table: Path, tmp_path: Path
) -> None:
    for more, told in (
        (["--device", "cuda"], ["no GPU", "nodes: 2, CPUs: 2, GPUs: 0", "--device cpu"]),
        (["--device", "cuda:1"], ["'cuda:1'", "give cuda"]),
        (["--set", "threads=64"], ["threads=64", "so many CPUs"]),
    ):
        assert_told(call(*words(table, tmp_path / "run", "--on", "ray", *more)), 2, *told)
        assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_nodes_with_another_version_are_refused(
    cluster: str, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(l2h, "__version__", "9.9.9")
    result = call(*words(table, tmp_path / "run", "--on", "ray"))
    assert_told(result, 1, "node ", "l2h 0.1.0, and this command 9.9.9", "install the same")


@pytest.mark.long
def test_errors_of_a_task_are_one_line_that_names_the_node(cluster: str) -> None:
    with ray_cluster("ray") as reached:
        request = reached.request(Settings())
        for task, kind, told in (
            (partial(Path("/dev/full").write_text, "x"), RunError, r"^node [\d.]+: .*No space left on device"),
            (partial(Path("/nowhere/data.npz").read_bytes), RunError, r"^node [\d.]+: .*No such file"),
            (partial(Settings, device="cpu", folds=0), SettingsError, r"^node [\d.]+: .*folds"),
            (partial(json.loads, "{"), RunError, r"^node [\d.]+: JSONDecodeError: Expecting"),
            (os.abort, RunError, "seed 3: lost with its node or process 6 times"),
        ):
            with pytest.raises(kind, match=told) as caught:
                list(reached.run([ClusterWork("seed 3", {"server": task})], request))
            assert "\n" not in str(caught.value)


@pytest.mark.long
def test_a_full_disk_is_told_and_what_was_finished_stays(
    cluster: str, compared: Path, table: Path, tmp_path: Path
) -> None:
    """The folder lies in a file system with room for two files of a seed, mounted for the command alone."""
    folder = tmp_path / "run"
    folder.mkdir()
    mount = f'mount -t tmpfs -o size=24k tmpfs {folder} && "$@"; status=$?; ls -R {folder}; exit $status'
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("this system lets nobody mount a file system for one process")
    arguments = command(*words(table, folder, "--on", "ray", seeds=40))
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", mount, "sh", *arguments],
        env=environment(), capture_output=True, text=True, timeout=STUCK, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    told = [line for line in done.stderr.splitlines() if "seed-" in line or "Traceback" in line]
    assert len(told) == 1
    assert "No space left on device" in told[0]
    assert ".npz" in done.stdout


@pytest.mark.long
def test_a_node_killed_in_the_middle_costs_time_only(table: Path, tmp_path: Path) -> None:
    import ray
    from ray_nodes import ray_nodes

    longer = ["--set", "server.epochs=30", "--set", "rejector.epochs=60"]
    here = call(*words(table, tmp_path / "here", *longer, "--jobs", 1))
    assert here.status == 0, here.err
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}
    with ray_nodes(_system_config=soon) as nodes, pytest.MonkeyPatch.context() as patch:

        @contextmanager
        def show(total: int, apart: bool) -> Iterator[tuple[Tell, None]]:
            """Kill the second node when the first task is done: others run, and the next of that seed are waiting."""

            def tell(seed: int, what: str) -> None:
                if nodes.worker_nodes:
                    nodes.remove_node(next(iter(nodes.worker_nodes)), allow_graceful=False)
                    until(lambda: sum(node["Alive"] for node in ray.nodes()) == 1)

            yield tell, None

        patch.setattr(compare, "_progress", show)
        result = call(*words(table, tmp_path / "run", *longer, "--on", "ray"))
    assert result.status == 0, result.err
    assert not nodes.worker_nodes
    assert "a node is lost (nodes: 1, CPUs: 1" in result.err
    assert_same_results(tmp_path / "run", tmp_path / "here")


@pytest.mark.long
def test_a_cluster_that_ends_in_the_middle_is_one_line(table: Path, tmp_path: Path) -> None:
    from ray_nodes import ray_nodes

    port = free_port()
    with ray_nodes(count=1, port=port) as nodes:
        longer = ["--set", "rejector.epochs=60", "--on", f"ray://127.0.0.1:{port}"]
        with start(*words(table, tmp_path / "run", *longer, seeds=40)) as process:
            until((tmp_path / "run" / "seeds" / "seed-0.npz").exists)
            nodes.shutdown()
            _, err = process.communicate(timeout=STUCK)
    assert process.returncode == 1
    assert "Traceback" not in err
    assert sum(line.startswith("error: ") for line in err.splitlines()) == 1
    assert "the same command goes on" in err


@pytest.mark.long
def test_another_version_of_ray_is_refused_in_one_line(table: Path, tmp_path: Path) -> None:
    import ray
    from ray_nodes import ray_nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "__version__", "2.9.0")  # what a head writes down as its own
        context = ray_nodes(1)
        context.__enter__()
    try:
        told = call(*words(table, tmp_path / "run", "--on", "ray"))
        assert_told(told, 1, "runs Ray 2.9.0", f"here is Ray {ray.__version__}", "install the same on both sides")
        assert not (tmp_path / "run").exists()
    finally:
        context.__exit__(None, None, None)


@pytest.mark.long
def test_a_node_without_the_package_and_one_with_a_full_disk_are_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of one cannot import L2H; the other has an object store of 80 MB, and no disk that Ray takes."""
    from ray_nodes import ray_nodes

    full = {"local_fs_capacity_threshold": 0.0}
    with ray_nodes(1, _system_config=full), ray_cluster("ray") as reached:
        request = reached.request(Settings())
        work = ClusterWork("seed 3", {"method": partial(np.zeros, 200 * 2**20, np.uint8)})
        with pytest.raises(RunError, match=r"^seed 3: the disk of a node is full") as caught:
            list(reached.run([work], request))
        assert "\n" not in str(caught.value)
    (tmp_path / "sitecustomize.py").write_text(blocking("l2h"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    with ray_nodes(1), ray_cluster("ray") as reached:
        request = reached.request(Settings())
        with pytest.raises(RunError, match=r"^a node lacks the package 'l2h'") as caught:
            list(reached.run([ClusterWork("seed 3", {"server": os.getpid})], request))
        assert "\n" not in str(caught.value)
