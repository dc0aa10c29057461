"""A fixed classifier, the client or a server that was not trained here, as a file compared with its original."""

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from l2h.bundle import BundleError, ClientPart
from l2h.bundle.sessions import exported_client, file_run, make_session
from l2h.classifiers import LITERT, Classifier, Preprocessing, SklearnClassifier, TorchClassifier, as_client
from l2h.classifiers.base import Array, Inputs
from l2h.classifiers.tabular import column_name, model_feeds
from l2h.columns import EncodedTable
from l2h.errors import ClientError, ConversionError, DataError, ExportError, warn
from l2h.export.onnx import ConvertibleClassifier, ExportedClassifier, classifier_to_onnx, on_cpu
from l2h.files import write_atomically
from l2h.table import Table

log = logging.getLogger("l2h")
CLIENT, SERVER = "client.onnx", "server.onnx"
#: Largest difference of an output, in units of the largest output where that is above 1.
TOLERANCE = 1e-5
#: By how much the numbers of a table are moved to see what rounding them to float32 does, how often, and what else a
#: probability may differ by; and the largest share of rows that may get another label.
_MOVED, _DRAWS, _ROUNDING, _OTHER_LABELS = 2.0**-22, 16, 0.01, 0.05


def export_client(client: Classifier, num_classes: int, features: bool, probes: Sequence[Inputs]) -> ExportedClassifier:
    """Return the client as a file, or a note that it must be given; warn where a file should have been possible.

    ``features`` says whether the rejector reads its features; on the batches of ``probes`` the file is compared with
    the original.
    """
    if isinstance(client, ConvertibleClassifier):
        try:
            return _export(client, num_classes, features, probes, CLIENT)
        except ConversionError as error:
            warn(f"the client ({client.kind}) is not in the bundle and must be given to it with client=: {error}")
    embedding = "embedding" if features else None
    chosen = client.preprocessing if client.preprocessing != Preprocessing() else None
    part = ClientPart(None, "given", None, "as_is", None, client.known_output, embedding, chosen)
    return ExportedClassifier(part, None)


def export_fixed_server(
    server: Classifier, num_classes: int, probes: Sequence[Inputs], file: str = SERVER
) -> tuple[ExportedClassifier | None, str]:
    """Return a server that was taken as it is, where it can be a file that gives scores; else None and the reason."""
    if not isinstance(server, ConvertibleClassifier):
        return None, f"a {server.kind} is no file"
    sent = [_as_sent(x) if isinstance(x, EncodedTable) else x for x in probes]
    try:
        exported = _export(server, num_classes, False, probes, file, sent)
    except ConversionError as error:
        return None, str(error)
    x = sent[1]
    if isinstance(x, EncodedTable):
        by_columns, reason = columns_needed(exported, x)
        if reason:
            return None, reason
        if by_columns:
            exported = replace(exported, part=replace(exported.part, feed="columns"))
            try:
                x = replace(x, table=x.columns.decode(x.x))  # as the server will have it
            except DataError as error:
                return None, str(error)
        else:
            x = x.x
    assert exported.data is not None
    run = file_run(exported.data, exported.part)
    (scores,) = run(x if isinstance(x, EncodedTable) else exported.part.inputs.apply(x))
    if getattr(scores, "shape", None) != (len(x), num_classes) or not np.issubdtype(scores.dtype, np.floating):
        return None, f"the {server.kind} does not give (n, {num_classes}) scores"
    return exported, ""


def columns_needed(exported: ExportedClassifier, x: EncodedTable) -> tuple[bool, str]:
    """Return whether a server's file takes columns of the table, and why it cannot get one from what is sent.

    A column of texts cannot be found from the numbers that go over the wire.
    """
    assert exported.data is not None
    assert exported.part.file is not None
    if exported.part.file.endswith(LITERT):
        return False, ""
    feeds = model_feeds(x, make_session(exported.data, exported.part.file, 1).get_inputs())
    texts = [column.name for column in x.columns if column.kind == "text"]
    needed = [name for name in texts if column_name(name) in feeds or name in feeds]
    if needed:
        return True, (
            f"it takes column {needed[0]!r}, which holds texts: they are hashed before they go over the wire, and "
            "cannot be found again"
        )
    return any(values is not x.x for values in feeds.values()), ""


def _as_sent(x: EncodedTable) -> EncodedTable:
    """Return rows with the numbers and categories that a server finds in what is sent, and the texts as they are."""
    if all(column.kind == "text" for column in x.columns):
        return x
    found = x.columns.decode(x.x).columns
    if not any((values != x.table.columns[name]).any() for name, values in found.items()):  # NaN and NaN differ
        return x
    return replace(x, table=Table({**x.table.columns, **found}, x.table.declared))


def save_onnx(estimator: Any, path: str | Path) -> Path:
    """Write a fitted scikit-learn estimator of a matrix as an ONNX file, if that answers the same, and return its path.

    Args:
        estimator: its classes are 0, 1, ...
        path: the file, which is replaced.

    Raises:
        ConversionError: it is no such estimator, skl2onnx cannot convert it, or the file would answer differently.
    """
    classifier = as_client(estimator)
    width = getattr(estimator, "n_features_in_", None)
    if not isinstance(classifier, SklearnClassifier) or width is None:
        raise ConversionError(f"a {type(estimator).__name__} is no fitted scikit-learn estimator of a matrix")
    if not np.array_equal(classifier.classes, np.arange(len(classifier.classes))):
        raise ConversionError(f"the classes of the estimator are {classifier.classes.tolist()[:5]}, not 0, 1, ...")
    rng = np.random.default_rng(0)
    probes = [rng.normal(size=(n, width)).astype(np.float32) for n in (1, 3, 17)]
    exported = _export(classifier, len(classifier.classes), False, probes, CLIENT)
    assert exported.data is not None
    return write_atomically(Path(path), exported.data)


def compare(name: str, exported: Array, original: Array, tolerance: float = TOLERANCE) -> float:
    """Return the largest difference, in units of the original's largest output where that is above 1, if tolerable."""
    if exported.shape != original.shape:
        raise ExportError(
            f"{name} gives {exported.shape} where the original gives {original.shape}: it was not written"
        )
    largest = max(1.0, float(np.abs(original).max(initial=0.0)))
    difference = float(np.abs(exported.astype(np.float64) - original).max(initial=0.0)) / largest
    if not difference <= tolerance:
        raise ExportError(
            f"{name} differs from the original by {difference:.2g} of its largest output; {tolerance:g} is allowed, "
            "so it was not written"
        )
    return difference


def _export(
    classifier: ConvertibleClassifier,
    num_classes: int,
    features: bool,
    probes: Sequence[Inputs],
    file: str,
    sent: Sequence[Inputs] | None = None,
) -> ExportedClassifier:
    reference = on_cpu(classifier) if isinstance(classifier, TorchClassifier) else copy.copy(classifier)
    has_scores = reference.answers(probes[-1], num_classes).has_scores  # decides about probabilities as well
    gives = "label" if not has_scores else "probability" if reference.probabilities else "logits"
    exported = classifier_to_onnx(
        reference,
        probes[1][:2],
        file,
        output="log_probability" if file == CLIENT else "scores",
        features="embedding" if features else None,
        gives=gives,
        num_classes=num_classes,
    )
    try:
        return replace(exported, agreement=largest_difference(exported, reference, num_classes, probes, sent))
    except (ExportError, BundleError) as error:
        if isinstance(classifier, SklearnClassifier):
            what = f"{type(classifier.estimator).__name__} as ONNX"
            if sent is not None and isinstance(sent[0], EncodedTable):
                what += ", which gets numbers rounded to float32,"
            raise ConversionError(f"{what} answers differently from the original: {error}") from error
        raise ExportError(str(error)) from error


def largest_difference(
    exported: ExportedClassifier,
    classifier: Classifier,
    num_classes: int,
    probes: Sequence[Inputs],
    sent: Sequence[Inputs] | None = None,
) -> float:
    """Return how far the file, read as a bundle reads it, is from the original; refuse labels that differ untied.

    ``sent`` is what the file gets of the probes, if it is not the same. Rows of a table may differ where the numbers of
    the table, which a file rounds to float32, make the difference.
    """
    part = exported.part
    assert part.file is not None
    assert exported.data is not None
    name, worst = part.file, 0.0
    answer = exported_client(file_run(exported.data, part), part, num_classes, classifier.labels)
    for X, given in zip(probes, probes if sent is None else sent, strict=True):
        original = classifier.answers(X, num_classes)
        label, log_p, features = answer(given)
        if part.gives == "log_probability":
            worst = max(worst, compare(name, log_p, original.log_probability))
        else:
            p = np.exp(original.log_probability)
            if isinstance(X, EncodedTable) and _is_rounding(classifier, X, p, np.exp(log_p)):
                differences = np.abs(np.exp(log_p) - p).max(axis=1)
                worst, few = max(worst, float(differences.max())), int((differences > TOLERANCE).sum())
                log.info("%s rounds numbers to float32, which changes %d of %d answers", name, few, len(X))
                continue
            worst = max(worst, compare(name, np.exp(log_p), p))
            largest = np.sort(p, axis=1)
            if (label != original.label)[largest[:, -1] - largest[:, -2] > TOLERANCE].any():
                raise ExportError(f"{name} answers with other labels than the original: it was not written")
        if features is not None and original.embedding is not None:
            worst = max(worst, compare(f"{name} (features)", features, original.embedding))
    return worst


def _is_rounding(classifier: Classifier, X: EncodedTable, p: Array, file: Array) -> bool:
    """Return whether a file's probabilities differ from the original's, ``p``, only because it rounds numbers.

    The original then answers as differently where the numbers are moved by as much, as where a tree splits at a value
    of the data; and few rows get another label.
    """
    odd = np.abs(file - p).max(axis=1) > TOLERANCE
    if not odd.any() or (file.argmax(axis=1) != p.argmax(axis=1)).sum() > max(1, _OTHER_LABELS * len(X)):
        return False
    rows, rng = X[odd], np.random.default_rng(0)
    amounts = [name for name, values in X.table.columns.items() if values.dtype.kind in "iuf" and _is_amount(values)]
    answers = [p[odd]]
    for _ in range(_DRAWS):
        moved = {
            name: rows.table.columns[name] * (1 + _MOVED * rng.choice([-1, 1], len(rows.table))) for name in amounts
        }
        table = Table({**rows.table.columns, **moved}, rows.table.declared)
        try:
            answers.append(np.exp(classifier.answers(replace(rows, table=table), p.shape[1]).log_probability))
        except ClientError:  # to it they are names, of which it knows some
            return False
    low, high = np.min(answers, axis=0), np.max(answers, axis=0)
    margin = high - low + _ROUNDING  # all that many columns together do is not drawn
    return bool(((low - margin <= file[odd]) & (file[odd] <= high + margin)).all())


def _is_amount(values: Array) -> bool:
    """Return whether numbers are amounts: few whole numbers that come again may be names of something."""
    there = values[np.isfinite(values)]
    return bool((there % 1 > 0).any()) or 2 * len(np.unique(there)) > len(there)
