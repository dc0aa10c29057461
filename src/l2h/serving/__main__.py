"""``python -m l2h.serving CONFIG``: the server with its settings as JSON. ``l2h serve`` becomes this process."""

import sys

from l2h.errors import L2HError
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.supervisor import Supervisor


def main(arguments: list[str]) -> int:
    """Serve; gives the exit status."""
    try:
        return Supervisor(ServingConfig.from_json(arguments[0])).run()
    except L2HError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
