"""The command line: it parses options, calls the package and prints what that returns."""


def main() -> None:
    """Run ``l2h`` and exit with 0, 1 (it failed), 2 (bad usage) or 130 (interrupted)."""
    import sys

    try:
        from l2h.cli.app import run
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] != "l2h":
            from l2h.errors import missing_extra

            sys.stderr.write(f"l2h: {missing_extra(f'the commands need {error.name}', 'cli')}\n")
            sys.exit(1)
        raise
    sys.exit(run())
