"""Write the generated parts of docs/methods.md: the property table, and how each method describes itself.

python benchmarks/methods_page.py
"""

from __future__ import annotations

import re
from pathlib import Path

from l2h import methods

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
COLUMNS = {
    "separate": "separate rejector",
    "learns_client": "learns m",
    "learns_server": "learns e",
    "asynchronous": "asynchronous",
}


def page(text: str) -> str:
    """Return the text with its generated parts replaced by the present ones."""
    everything = methods.get(methods.known())
    for name, part in (("properties", property_table(everything)), ("methods", method_list(everything))):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(pattern, lambda m, part=part: m[1] + part + m[2], text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"{PAGE} has {count} parts named {name}: expected one")
    return text


def property_rows(described: list[methods.Method]) -> list[tuple[str, dict[str, bool | None], list[str]]]:
    """Title, the four properties and which of them the L2H paper prints otherwise, of each method with a rejector."""
    rows = []
    for method in described:
        if method.traits is None:
            continue
        ours, printed = method.traits.as_dict(), method.published_traits
        other = [] if printed is None else [key for key in COLUMNS if printed.as_dict()[key] != ours[key]]
        rows.append((method.title, ours, other))
    return rows


def property_table(described: list[methods.Method]) -> str:
    """The paper's table of properties, from the declarations; a star where the paper prints otherwise."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", f"|---|{'---|' * len(COLUMNS)}"]
    for title, properties, other in property_rows(described):
        cells = [_mark(properties[key]) + ("\\*" if key in other else "") for key in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def method_list(described: list[methods.Method]) -> str:
    """Name, source, equation and what had to change, method by method."""
    parts = []
    for method in described:
        source = f" {method.reference}." if method.reference else ""
        lines = [f"**`{method.name}`** ({method.title}).{source}", "", f"    {method.equation}"]
        if method.change:
            lines += ["", f"Here: {method.change}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _mark(value: bool | None) -> str:
    """yes, no, or a dash where it does not apply."""
    return "-" if value is None else "yes" if value else "no"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
