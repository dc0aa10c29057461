"""What the methods say of themselves, as Markdown: what ``docs/methods.md`` holds."""

from l2h.methods.base import Method

COLUMNS = {
    "separate": "separate rejector",
    "learns_client": "learns m",
    "learns_server": "learns e",
    "asynchronous": "asynchronous",
}


def property_rows(methods: list[Method]) -> list[tuple[str, dict[str, bool | None], list[str]]]:
    """Title, the four properties and which of them the L2H paper prints otherwise, of each method with a rejector."""
    rows = []
    for method in methods:
        if method.traits is None:
            continue
        ours, printed = method.traits.as_dict(), method.published_traits
        other = [] if printed is None else [key for key in COLUMNS if printed.as_dict()[key] != ours[key]]
        rows.append((method.title, ours, other))
    return rows


def property_table(methods: list[Method]) -> str:
    """The paper's table of properties, from the declarations; a star where the paper prints otherwise."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", f"|---|{'---|' * len(COLUMNS)}"]
    for title, properties, other in property_rows(methods):
        cells = [mark(properties[key]) + ("\\*" if key in other else "") for key in COLUMNS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def method_list(methods: list[Method]) -> str:
    """Name, source, equation and what had to change, method by method."""
    parts = []
    for method in methods:
        source = f" {method.reference}." if method.reference else ""
        lines = [f"**`{method.name}`** ({method.title}).{source}", "", f"    {method.equation}"]
        if method.change:
            lines += ["", f"Here: {method.change}."]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def mark(value: bool | None) -> str:
    """yes, no, or a dash where it does not apply."""
    return "-" if value is None else "yes" if value else "no"
