"""The key for the server, read from a file or the environment rather than from the command line."""

import os
import warnings
from pathlib import Path

from l2h.edge.errors import EdgeSettingsError
from l2h.edge.options import check_key
from l2h.errors import L2HWarning

#: Where the commands look for the key if no file is named.
VARIABLE = "L2H_KEY"
_LONGEST = 4096


def read_key(path: str | Path | None = None) -> str | None:
    """Return the key in a file, or else in the environment's ``L2H_KEY``; None where there is neither.

    Warns of a file that others may read.

    Raises:
        EdgeSettingsError: the file cannot be read, or holds no key; the message does not show what it holds.
    """
    if path is None:
        key = os.environ.get(VARIABLE)
        return None if key is None else check_key(key.strip())
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(_LONGEST + 1)
    except OSError as error:
        raise EdgeSettingsError(f"cannot read the key file {path}: {error.strerror or error}") from error
    if os.name == "posix" and mode & 0o077:
        warnings.warn(f"others can read the key file {path}: chmod 600 {path}", L2HWarning, stacklevel=2)
    try:
        return check_key(text.decode("ascii").strip() if len(text) <= _LONGEST else "")
    except (UnicodeDecodeError, EdgeSettingsError):
        raise EdgeSettingsError(f"{path} holds no key: one line of printable ASCII without spaces") from None
