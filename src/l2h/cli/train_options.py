"""The options of ``l2h train``, in the groups that its help shows."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from l2h.cli import options as shared
from l2h.cli.options import Prices, Texts, price_option, run_option, training_option

_feed = partial(typer.Option, rich_help_panel="What client and server files are fed")
_two = partial(typer.Option, rich_help_panel="Two programs over a network")
_cluster = partial(typer.Option, rich_help_panel="Several processes or GPUs")
_api = partial(typer.Option, rich_help_panel="Somebody's API as the server")


@dataclass(frozen=True)
class ModelOptions:
    """The data, and who answers; the names are those of :class:`l2h.experiments.plan.Plan`."""

    data: Annotated[
        str | None,
        Option(
            "--data",
            "-d",
            help="digits, an .npz, a table (.csv or Parquet, with --target), an image folder, Hugging Face Parquet "
            "(FILE, DIR/NAME for NAME-train.parquet, a folder or 'DIR/train-*.parquet'), WebDataset .tar files (a "
            "folder, or 'DIR/train-{000..011}.tar'), CIFAR python batches, or SVHN .mat.",
        ),
    ] = None
    test: shared.TestPart = None
    target: shared.Target = None
    limit: shared.Limit = None
    size: shared.Size = None
    cache: shared.Cache = None
    on_error: shared.OnError = None
    client: Annotated[
        str,
        Option(
            "--client",
            "-m",
            help="The classifier that cannot change: an .onnx, .tflite, .pt (TorchScript) or .pt2 file; or a stand-in "
            "trained here first: tree, lenet5, alexnet, vit, mlp.",
        ),
    ] = "lenet5"
    client_share: Annotated[
        float, Option(help="Share of the training samples a stand-in client is trained on; below 1 they are its own.")
    ] = 1.0
    server: Annotated[
        Texts,
        Option(
            "--server",
            "-e",
            help="lenet5, alexnet, vit or mlp; sklearn:NAME, a scikit-learn classifier such as "
            "sklearn:HistGradientBoostingClassifier (--option server.max_iter=50); the .onnx file of a server kept "
            "as is; or somebody's API: an address of the Open Inference Protocol (https://...), or module:function, "
            "a function that asks it. Several: NAME=MODEL, repeated. (default: alexnet)",
        ),
    ] = None
    second_opinion: Annotated[
        bool,
        Option("--second-opinion", help="Let the rejector's student answer too, where it is more likely right."),
    ] = False
    rejector: Annotated[
        str | None,
        Option("--rejector", "-r", help="attached (sees the client's scores) or separate. (default: attached)"),
    ] = None
    budget: Annotated[
        str | None,
        Option(
            help="What the rejector may cost the device: 0.3 (times the client's multiply-adds), 200k (multiply-adds) "
            "or 50us (time here, one thread). (default: 1)"
        ),
    ] = None
    client_features: Annotated[
        str | None,
        Option(
            help="What the rejector reads of a client that is a torch module or an ONNX file: a tensor inside it by "
            "its name, auto (the one that says most) or none. (default: what the client gives out)"
        ),
    ] = None
    method: Annotated[
        str | None,
        Option(help="Instead of --loss and --rejector, a method of l2h compare that learns: two-stage-confidence."),
    ] = None
    method_files: shared.MethodFiles = None
    calibration: Annotated[float, Option(help="Share of the training samples kept for calibration.")] = 0.1


@dataclass(frozen=True)
class ApiOptions:
    """How a server that is asked, not trained, is asked; the names are those of :class:`l2h.experiments.plan.Plan`."""

    server_version: Annotated[
        str | None, _api(help="Your word for the API's version: answers kept under another are not used.")
    ] = None
    server_batch: Annotated[int | None, _api(help="Inputs per call. (default: 64)", min=1)] = None
    server_cache: Annotated[
        str | None, _api(help="Folder of the answers, shared by all runs that name it. (default: the run folder)")
    ] = None


@dataclass(frozen=True)
class FeedOptions:
    """What models that are files are fed, and how their output is read."""

    client_scale: Annotated[
        str | None,
        _feed(
            help="What the pixels of a client file become: 0..1, -1..1, 0..255 or imagenet (its mean and std). "
            "(default: all are tried on labelled samples, and the best is taken)"
        ),
    ] = None
    client_mean: Annotated[str | None, _feed(help="Subtracted after scaling to 0..1: 0.5, or one per channel.")] = None
    client_std: Annotated[str | None, _feed(help="What that is divided by: 0.5, or 0.229,0.224,0.225.")] = None
    client_size: Annotated[
        str | None,
        _feed(help="Height and width that the client takes: 224, or 224x160. (default: what its file declares)"),
    ] = None
    client_layout: Annotated[str | None, _feed(help="NCHW or NHWC. (default: what its file declares)")] = None
    client_output: Annotated[
        str | None, _feed(help="What the client's scores are: probability or logit. (default: their values tell)")
    ] = None
    client_accuracy: Annotated[
        float | None, _feed(help="The client's share of right answers, if you know it: 0.91. Far less gets a warning.")
    ] = None
    server_scale: Annotated[str | None, _feed(help="As --client-scale, for a server that is a file.")] = None
    server_mean: Annotated[str | None, _feed(help="As --client-mean.")] = None
    server_std: Annotated[str | None, _feed(help="As --client-std.")] = None
    server_size: Annotated[str | None, _feed(help="As --client-size.")] = None
    server_layout: Annotated[str | None, _feed(help="As --client-layout.")] = None
    server_output: Annotated[str | None, _feed(help="As --client-output.")] = None


@dataclass(frozen=True)
class OutcomeOptions:
    """Answerers of which only the outcomes are known, instead of data, client and server."""

    outcomes: Annotated[
        str | None,
        Option(
            "--outcomes",
            rich_help_panel="Outcomes only",
            help="Instead of --data: a .parquet or .csv table with the columns client_right and server_right, for "
            "answerers that are not classifiers, such as two language models. Trains a router.",
        ),
    ] = None
    text_column: shared.TextColumn = None


@dataclass(frozen=True)
class RunOptions:
    """Where the run goes, and how it is reported."""

    out: Annotated[Path, run_option("--out", "-o", help="The run folder.")]
    resume: Annotated[bool, run_option("--resume", help="Go on with the interrupted run in the folder.")] = False
    force: Annotated[bool, run_option("--force", help="Replace the run that is in the folder.")] = False
    checkpoint_every: Annotated[int, run_option(help="Epochs between two checkpoints.", min=1)] = 1
    stream: Annotated[
        bool | None,
        run_option(
            "--stream/--no-stream",
            help="Read decoded images from --cache batch by batch, instead of all into memory; the results are the "
            "same. (default: where they take more than 1/8 of the free memory)",
        ),
    ] = None
    as_json: Annotated[bool, run_option("--json", help="Print the metrics as JSON: a list, one per price.")] = False


@dataclass(frozen=True)
class TrainingOptions:
    """The grid of prices, and how the server and the rejector are trained."""

    c_1: Annotated[
        Prices, price_option("--c-1", help="Extra cost of a wrong remote answer; repeat for a grid. (default: 1)")
    ] = None
    c_e: Annotated[Prices, price_option("--c-e", help="Price of a request; repeat for a grid. (default: 0.1)")] = None
    price: Annotated[
        Texts,
        price_option("--price", help="Of several servers, instead of these: NAME=C_E or NAME=C_E:C_1, one per server."),
    ] = None
    sync: Annotated[
        Texts,
        training_option(
            "--sync",
            help="With --recipe paper: when copies of the server reach the rejector: S in steps, epoch, "
            "trace:FILE.csv, onoff:10:40 (mean steps up and down); repeat for several beside each other. (default: 1)",
        ),
    ] = None
    recipe: Annotated[str, training_option(help="default, or paper: Algorithm 1 step by step.")] = "default"
    loss: Annotated[
        str | None,
        training_option(
            help="priced (any price at run time), shifted, swapped, paper or released. (default: priced; recipe paper: "
            "paper)"
        ),
    ] = None
    honest: Annotated[
        str,
        training_option(help="Samples for the rejector that the server has not fitted: auto, holdout, crossfit, none."),
    ] = "auto"
    augment: Annotated[
        str | None,
        training_option(help="none, shift or flip+shift. (default: what suits the data; recipe paper: none)"),
    ] = None
    seed: Annotated[int, training_option(help="Seed of everything drawn.", min=0)] = 0
    device: shared.Device = "auto"
    precision: shared.Precision = "fp32"
    settings_file: Annotated[
        Path | None,
        training_option(
            "--settings",
            help="Settings and options by name, as JSON, such as l2h tune writes. --set and --option override it.",
        ),
    ] = None
    set_: shared.Set = None
    option: shared.ModelOption = None


@dataclass(frozen=True)
class ClusterOptions:
    """Several processes of a Ray cluster that train the server together."""

    on: Annotated[
        str | None,
        _cluster(
            help="Train on a Ray cluster that shares the run folder's disk: ray (the one of RAY_ADDRESS or of this "
            "machine, else a new one here), or ray://HOST:10001. (default: here; torchrun -m l2h train also starts "
            "several processes)"
        ),
    ] = None
    processes: Annotated[
        int | None,
        _cluster(
            help="How many train the server together, each with a part of every batch. (default: all that fit)", min=1
        ),
    ] = None


@dataclass(frozen=True)
class HostOptions:
    """One side of Algorithm 2 alone, and how it reaches the other."""

    role: Annotated[str | None, _two(help="One side of Algorithm 2 alone: server or client. With --recipe paper.")] = (
        None
    )
    listen: Annotated[str, _two(help="Role server: HOST:PORT to offer snapshots at.")] = "127.0.0.1:8470"
    server_url: Annotated[str | None, _two(help="Role client: where the server's side offers them.")] = None
    token_file: Annotated[Path | None, _two(help="The token both sides share. (default: L2H_TOKEN)")] = None
    send: Annotated[
        str, _two(help="weights, or answers: one bit per training sample, where both sides hold the same samples.")
    ] = "weights"
    publish_every: Annotated[
        int | None, _two(help="Role server: steps between two snapshots. (default: an epoch)", min=1)
    ] = None
    linger: Annotated[float, _two(help="Role server: seconds to stay after the training.", min=0)] = 30.0
    poll: Annotated[float, _two(help="Role client: seconds between two checks for a snapshot.", min=0.01)] = 1.0
