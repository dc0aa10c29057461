"""``python -m l2h`` is ``l2h``."""

from l2h.cli import main

if __name__ == "__main__":
    main()
