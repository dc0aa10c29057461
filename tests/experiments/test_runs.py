"""Files of runs that grow while something runs."""

from __future__ import annotations

import pytest

from l2h.experiments.runs import append_rows


def test_rows_are_written_all_or_none(tmp_path):
    path = tmp_path / "rows.csv"

    def broken_off():
        yield {"seed": 1, "risk": 0.2}
        raise KeyboardInterrupt

    append_rows(path, ["seed", "risk"], [{"seed": 0, "risk": 0.1}])
    with pytest.raises(KeyboardInterrupt):
        append_rows(path, ["seed", "risk"], broken_off())
    assert path.read_text() == "seed,risk\n0,0.1\n"
    append_rows(path, ["seed", "risk"], [{"seed": 1, "risk": 0.3}])
    assert path.read_text() == "seed,risk\n0,0.1\n1,0.3\n"
