"""Mean and standard error over seeds of what `l2h train --json` printed, as CSV and as a table in Markdown.

l2h train --data DATA/cifar10 --client lenet5 --server alexnet --seed 0 ... --json > results/cifar10/seed-0.json
python benchmarks/summary.py results/cifar10/seed-*.json --out results/cifar10/summary.csv
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

from l2h.metrics import spread

RISKS = ("system", "all_local", "all_remote", "random", "confidence", "oracle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seeds = [json.loads(path.read_text()) for path in arguments.file]
    rows = []
    for cell in zip(*seeds, strict=True):
        row: dict[str, object] = {"c_1": cell[0]["costs"]["c_1"], "c_e": cell[0]["costs"]["c_e"], "seeds": len(cell)}
        figures = {
            "sent": [one["reject_rate"] for one in cell],
            **{f"accuracy_{name}": [one["accuracy"][name] for one in cell] for name in ("client", "server", "system")},
            **{f"risk_{name}": [one["risk"][name] for one in cell] for name in RISKS},
            **{
                name: [one["frontier"][name] for one in cell] for name in ("gain", "confidence_gain", "label_free_gain")
            },
        }
        for name, values in figures.items():
            found = spread(values)
            row |= {f"{name}_mean": round(found.mean, 5), f"{name}_sem": round(found.sem or 0.0, 5)}
        rows.append(row)
    with arguments.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("| c_1, c_e | L2H | sent | never ask | always ask | random | confidence | oracle |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        risks = [f"{row[f'risk_{name}_mean']:.4f} ± {row[f'risk_{name}_sem']:.4f}" for name in RISKS]
        sent = f"{100 * float(str(row['sent_mean'])):.0f}%"
        print(f"| {row['c_1']:g}, {row['c_e']:g} | **{risks[0]}** | {sent} | {' | '.join(risks[1:])} |")
    first = rows[0]
    for name in ("accuracy_client", "accuracy_server", "gain", "confidence_gain", "label_free_gain"):
        print(f"{name}: {first[f'{name}_mean']} ± {first[f'{name}_sem']}")


if __name__ == "__main__":
    main()
