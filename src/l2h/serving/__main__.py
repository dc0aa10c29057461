"""``python -m l2h.serving CONFIG``: the server with its settings as JSON. ``l2h serve`` becomes this process."""

import sys
import traceback

from l2h.errors import L2HError
from l2h.serving.process.config import ServingConfig
from l2h.serving.process.logs import log_as_json, log_event
from l2h.serving.process.supervisor import Supervisor


def main(arguments: list[str]) -> int:
    """Serve; gives the exit status."""
    try:
        config = ServingConfig.from_json(arguments[0])
    except L2HError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    log = log_as_json(config.log_level)
    try:
        return Supervisor(config, log).run()
    except L2HError as error:
        if sys.stderr.isatty():  # somebody tries to start it
            log.put(f"error: {error}\n".encode(errors="replace"))
        else:
            log_event("error", "server_failed", error=str(error))
        return 1
    except Exception:  # noqa: BLE001 - Python would write it to stderr, where a full pipe would hold it
        log_event("error", "server_failed", traceback=traceback.format_exc().rstrip())
        return 1
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
