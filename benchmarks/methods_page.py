"""Write the generated parts of docs/methods.md anew: the property table, and what the methods say of themselves.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

from l2h import methods
from l2h.methods.describe import method_list, property_table

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"


def page(text: str) -> str:
    """The text with its generated parts as they should be."""
    everything = methods.get(methods.known())
    for name, part in (("properties", property_table(everything)), ("methods", method_list(everything))):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, found = re.subn(pattern, lambda m, part=part: m[1] + part + m[2], text, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"{PAGE} has {found} parts named {name}: expected one")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
