"""Write the generated parts of docs/methods.md: the property table, and how each method describes itself.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

from l2h import methods
from l2h.methods.describe import method_list, property_table

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"


def page(text: str) -> str:
    """Return the text with its generated parts replaced by the present ones."""
    everything = methods.get(methods.known())
    for name, part in (("properties", property_table(everything)), ("methods", method_list(everything))):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, part=part: m[1] + part + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} parts named {name}: expected one")
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
