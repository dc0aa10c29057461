"""Reading audit files into arrays; what does not belong is left out, counted, and named by file and line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from l2h.audits.lines import LONGEST_LINE, SCHEMA, SUFFIX, AuditError, AuditHeader, AuditPair, LabelLine, decode
from l2h.costs import BoolArray, Costs, FloatArray
from l2h.decision import Answerer, Judgement
from l2h.errors import CostError, reason
from l2h.files import open_regular

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LeftOut:
    """Lines that were left out for one reason."""

    reason: str
    count: int
    where: str  # the first of them, as FILE:LINE

    def __str__(self) -> str:
        return f"{self.count} line{'s' * (self.count != 1)} left out: {self.reason} (first: {self.where})"


@dataclass(frozen=True)
class AuditPairs:
    """The n pairs of one bundle, in the order of their times; classes are numbers from 0, and -1 stands for none."""

    header: AuditHeader
    id: tuple[str, ...]
    time: FloatArray  # (n,), seconds since 1970
    asked: BoolArray  # (n,), asked anyway; else asked by chance, although the device would have kept it
    probability: FloatArray  # (n,), of being among the pairs
    reason: npt.NDArray[np.str_]  # (n,), of the decision
    which: Numbers  # (n,), the number of the rejector
    heads: FloatArray  # (n, J), its raw scores
    client: Numbers  # (n,), the client's answer
    student: Numbers  # (n,), the student's
    local: Numbers  # (n,), whose answer is the best of the device, as a column of the heads
    by: Numbers  # (n,), the server, as a column of the heads
    server: Numbers  # (n,), its answer; -1 where none came
    fault: npt.NDArray[np.str_]  # (n,), why none came
    costs: FloatArray  # (n, 4): c_cc, c_ce, c_sc, c_se
    label: Numbers  # (n,), the true class
    left_out: tuple[LeftOut, ...] = ()
    files: int = 0
    devices: tuple[str, ...] = field(default=())  # their names, as far as they have one

    def __len__(self) -> int:
        return len(self.id)

    def __repr__(self) -> str:
        labelled = int((self.label >= 0).sum())
        return (
            f"AuditPairs({len(self)} of bundle {self.header.bundle}, {int(self.asked.sum())} asked, {labelled} labels)"
        )

    def rows(self, rows: npt.NDArray[Any]) -> AuditPairs:
        """Return some of the pairs, by their places or by a mask."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        arrays: dict[str, Any] = {
            name: value[places] for name, value in vars(self).items() if isinstance(value, np.ndarray)
        }
        arrays.pop("stated", None)
        return replace(self, id=tuple(self.id[i] for i in places.tolist()), **arrays)

    @property
    def weight(self) -> FloatArray:
        """(n,), how many inputs each pair stands for."""
        return 1.0 / self.probability

    @property
    def answered(self) -> BoolArray:
        """(n,), whether the server's answer came."""
        return self.server >= 0

    @property
    def own(self) -> Numbers:
        """(n,), the answer of the device: the client's, or the student's where that is the better one."""
        return np.where(self.local == 0, self.client, self.student)

    @cached_property
    def stated(self) -> FloatArray:
        """(n, J), how likely each answerer is right, as the heads state it; NaN where a rejector states nothing."""
        out = np.full(self.heads.shape, np.nan)
        answerers = tuple(Answerer(name, remote=j >= self.header.local) for j, name in enumerate(self.header.answerers))
        for number, platt in enumerate(self.header.platt):
            rows = self.which == number
            if platt is not None and rows.any():
                out[rows] = Judgement.from_heads(self.heads[rows], platt, answerers).probability
        return out


def read_audits(*sources: str | Path, bundle: str | None = None) -> AuditPairs:
    """Return the pairs of one bundle, with the labels that came for them, from folders or single files.

    Left out, counted and named are: lines that are damaged or hold what is not finite, an unknown answerer or class;
    pairs of other bundles; files whose header gives the bundle other classes or answerers; a second pair with an id.

    Args:
        sources: folders with audit files, or files.
        bundle: the version of the bundle; that of the newest file where None.

    Raises:
        AuditError: a source cannot be read, or holds no pair of the bundle.
    """
    reader = _Reader()
    files = [path for source in sources for path in _files(Path(source))]
    for path in files:
        reader.read(path)
    return reader.gather(bundle, len(files), ", ".join(map(str, sources)))


class _Reader:
    def __init__(self) -> None:
        self.headers: list[tuple[AuditHeader, str]] = []  # and where each stands
        self.pairs: list[tuple[int, AuditPair, str]] = []  # with the number of the header
        self.labels: list[tuple[int, LabelLine, str]] = []  # the same
        self.left_out: dict[str, list[str]] = defaultdict(list)

    def read(self, path: Path) -> None:
        known = False
        for where, line in _lines(path):
            try:
                found = decode(line)
            except ValueError as error:
                cut = not line.endswith(b"\n")
                self.leave_out("the last line is cut off" if cut else f"damaged, {reason(error, 100)}", where)
                continue
            if isinstance(found, AuditHeader):
                known = self.take_header(found, where)
            elif not known:
                self.leave_out("no usable header above", where)
            elif isinstance(found, LabelLine):
                self.labels.append((len(self.headers) - 1, found, where))
            else:
                self.pairs.append((len(self.headers) - 1, found, where))

    def take_header(self, header: AuditHeader, where: str) -> bool:
        wrong = None
        if header.schema > SCHEMA:
            wrong = f"schema {header.schema}, this version reads {SCHEMA}: update l2h"
        elif header.local >= len(header.answerers) or len(header.classes) < 2:
            wrong = "a header without servers or classes"
        elif any(platt is not None and len(platt) != len(header.answerers) for platt in header.platt):
            wrong = "a header with more or fewer heads than answerers"
        if wrong is None:
            self.headers.append((header, where))
        else:
            self.leave_out(wrong, where)
        return wrong is None

    def gather(self, bundle: str | None, files: int, sources: str) -> AuditPairs:
        used = {number for number, _, _ in self.pairs}
        of = [header for i, (header, _) in enumerate(self.headers) if i in used and bundle in (None, header.bundle)]
        if not of:
            wanted = "" if bundle is None else f" of bundle {bundle}"
            others = sorted({header.bundle for i, (header, _) in enumerate(self.headers) if i in used})
            hint = f"; there are pairs of {', '.join(others)}" if others else ""
            hint += "".join(f"; {each}" for each in self._left_out()[:3])
            raise AuditError(f"{sources}: no pair{wanted} in {files} file{'s' * (files != 1)}{hint}")
        newest = max(of, key=lambda header: header.time)
        kept: dict[str, AuditPair] = {}
        devices = set()
        for number, pair, where in self.pairs:
            header = self.headers[number][0]
            wrong = _wrong(pair, header, newest)
            if wrong is None and pair.id in kept:
                wrong = "an id that an earlier line has"
            if wrong is not None:
                self.leave_out(wrong, where)
                continue
            kept[pair.id] = pair
            devices.add(header.device)
        if not kept:
            hint = "".join(f"; {each}" for each in self._left_out()[:3])
            raise AuditError(f"{sources}: no usable pair of bundle {newest.bundle}{hint}")
        labels: dict[str, int] = {}
        for number, line, where in sorted(self.labels, key=lambda found: found[1].time):
            label = _class_number(line.label, self.headers[number][0].classes, newest.classes)
            if label is not None:
                labels[line.id] = label
            elif line.id in kept:
                self.leave_out("a label that is no class of the bundle", where)
        pairs = sorted(kept.values(), key=lambda pair: pair.time)
        named = tuple(sorted(filter(None, devices)))
        return _arrays(newest, pairs, labels, left_out=self._left_out(), files=files, devices=named)

    def leave_out(self, reason: str, where: str) -> None:
        self.left_out[reason].append(where)

    def _left_out(self) -> tuple[LeftOut, ...]:
        return tuple(LeftOut(reason, len(places), places[0]) for reason, places in self.left_out.items())


def _class_number(label: int, theirs: tuple[str, ...], ours: tuple[str, ...]) -> int | None:
    """Return the number of a class among ours; None where it is none. Labels may come below another bundle's header."""
    if label >= len(theirs) or (theirs != ours and theirs[label] not in ours):
        return None
    return label if theirs == ours else ours.index(theirs[label])


def _wrong(pair: AuditPair, header: AuditHeader, newest: AuditHeader) -> str | None:
    """Return why a pair cannot be used beside those of the newest header; None where it can."""
    if header.bundle != newest.bundle:
        return f"another bundle, {header.bundle}"
    if not header.describes_the_same(newest):
        return "a header that gives the bundle other classes or answerers"
    problems = {
        "a number that is no class of the bundle": max(pair.client, pair.student or 0, pair.server or 0)
        >= len(header.classes),
        "other heads than the bundle has": len(pair.heads) != len(header.answerers) or pair.which >= len(header.platt),
        "an answerer that the bundle does not have": pair.by not in header.answerers[header.local :]
        or pair.local >= header.local,
        "no answer of the student": pair.local > 0 and pair.student is None,
    }
    try:
        Costs.from_dict(pair.costs)
    except (CostError, KeyError) as error:
        problems[f"costs: {reason(error, 100)}"] = True
    return next((f"damaged, {problem}" for problem, is_so in problems.items() if is_so), None)


def _arrays(header: AuditHeader, pairs: list[AuditPair], labels: dict[str, int], **rest: Any) -> AuditPairs:
    costs = [Costs.from_dict(pair.costs) for pair in pairs]
    for name in ("time", "probability", "reason", "which", "heads", "client", "local"):
        rest[name] = np.array([getattr(pair, name) for pair in pairs])
    return AuditPairs(
        header=header,
        id=tuple(pair.id for pair in pairs),
        asked=np.array([pair.kind == "asked" for pair in pairs]),
        student=np.array([-1 if pair.student is None else pair.student for pair in pairs]),
        by=np.array([header.answerers.index(pair.by, header.local) for pair in pairs]),
        server=np.array([-1 if pair.server is None else pair.server for pair in pairs]),
        fault=np.array([pair.fault or "" for pair in pairs]),
        costs=np.array([(one.c_cc, one.c_ce, one.c_sc, one.c_se) for one in costs]),
        label=np.array([labels.get(pair.id, -1) for pair in pairs]),
        **rest,
    )


def _files(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise AuditError(f"{source} is not there: give a folder of audit files, EdgeClient(..., audits=FOLDER)")
    files = sorted(source.glob(f"*{SUFFIX}"))
    if not files:
        raise AuditError(f"{source} holds no audit files (*{SUFFIX}): EdgeClient(..., audit=0.01, audits=FOLDER)")
    return files


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with open_regular(path) as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), start=1):
                if line.strip():
                    yield f"{path}:{number}", line
    except FileNotFoundError:
        return  # the oldest, deleted since the folder was listed
    except OSError as error:
        raise AuditError(f"cannot read {path}: {error.strerror or error}") from error
