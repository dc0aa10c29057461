"""``l2h shift``: what a run does where the inputs change."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from l2h.cli.options import Asked, MethodFiles, ServerRun, Target, TestPart, Texts, by_name, run_option, takes_groups
from l2h.cli.output import command_line, log, print_summary
from l2h.errors import SettingsError


@dataclass(frozen=True)
class ShiftOptions:
    """Which runs, which shifts, under which conditions, and where the results go."""

    run: Annotated[list[Path] | None, Argument(help="One run folder, or several of different seeds.")] = None
    shift: Annotated[
        Texts,
        Option(
            "--shift",
            help="noise, blur, contrast, jpeg, hard-classes, easy-classes or hard-inputs, in all five strengths; or "
            "one: blur:3; repeat. (default: all that the inputs can take)",
        ),
    ] = None
    other: Annotated[
        Texts, Option("--other", help="Other data that is a shift itself, such as a harder test set; repeat.")
    ] = None
    limit: Annotated[
        Texts, Option("--limit", help="A share to be kept; repeat. (default: 20%@95%, 20%/1000 and 20%+-50)")
    ] = None
    course: Annotated[
        str | None, Option(help="The shift that comes and goes in the picture. (default: contrast:5 where measured)")
    ] = None
    c_e: Annotated[float | None, Option("--c-e", help="Price of one request. (default: the run's)")] = None
    c_1: Annotated[float | None, Option("--c-1", help="Of a wrong answer of the server. (default: the run's)")] = None
    data: Annotated[str | None, Option("--data", "-d", help="Other data than the run's.")] = None
    test: TestPart = None
    target: Target = None
    samples: Annotated[int | None, Option(help="Use only so many test samples.", min=1)] = None
    server_run: ServerRun = None
    server: Asked = None
    method_files: MethodFiles = None
    out: Annotated[Path, run_option("--out", "-o", help="The folder.")] = Path("runs/shift")
    rows: Annotated[
        list[Path] | None,
        run_option("--rows", help="Measure nothing: draw the rows of this shift.csv; repeat to join several."),
    ] = None
    force: Annotated[bool, run_option("--force", help="Replace what is in the folder.")] = False
    as_json: Annotated[bool, run_option("--json", help="Print shift.json.")] = False


@takes_groups
def shift(options: ShiftOptions) -> None:
    """Measure a finished run where the inputs are no longer like its calibration samples.

    Images are made worse on the fly, and the mix of classes and of difficult inputs changes, each in five strengths.
    For each: risk, how often the server is asked, whether limits hold, and when the drift alarm comes.

    Example: [bold]l2h shift runs/demo --out runs/shift[/]

    Example: [bold]l2h shift runs/demo --shift blur --limit 10% --limit 10%+-30 --out runs/blurred[/]

    Example: [bold]l2h shift runs/seed-0 runs/seed-1 --other night.npz --out runs/night[/] takes your own data
    for a shift.
    """
    from l2h.experiments.runs import require_empty
    from l2h.experiments.shift.rows import read_rows, summarise, write_rows
    from l2h.report import shift_tables, write_shift

    if bool(options.run) == bool(options.rows):
        raise SettingsError("name run folders, or --rows FILE")
    require_empty(options.out, force=options.force)
    rows, courses = read_rows(options.rows) if options.rows else _measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_rows(options.out, rows, courses)
    summary = summarise(rows, courses, command_line())
    picture = write_shift(summary, options.out)
    print_summary(summary, options.as_json, shift_tables(summary))
    if not options.as_json:
        log.info("The picture: %s", picture)


def _measure(options: ShiftOptions) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    from l2h.cli.bars import count_progress
    from l2h.experiments.finished import Asking
    from l2h.experiments.shift.measuring import LIMITS, ShiftStudy, measure_shifts
    from l2h.experiments.shift.traffic import Shift
    from l2h.limits import RateLimit

    course = Shift.parse(options.course) if options.course else []
    if len(course) > 1:
        raise SettingsError(f"--course {options.course}: give one strength, such as blur:3")
    study = ShiftStudy(
        shifts=tuple(one for text in options.shift or () for one in Shift.parse(text)),
        limits=tuple(RateLimit.parse(text) for text in options.limit or LIMITS),
        others=tuple(options.other or ()),
        course=course[0] if course else None,
        **{name: getattr(options, name) for name in ("data", "test", "target", "c_e", "c_1", "samples", "server_run")},
    )
    with count_progress("shifts") as told:
        return measure_shifts(options.run or [], study, told, Asking(by_name(options.server, "--server")))
