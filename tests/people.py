"""Rows about patients, as people write them, and files of them."""

import csv
import random

OPTIONS = {"target": "ill", "standardise": True, "categorical": "auto", "missing": "indicator"}


def people(rows=120, seed=0):
    """Rows as people write them: text, gaps, dates; ``q`` is rare."""
    drawn = random.Random(seed)
    return [
        {
            "ward": "q" if row == 3 else drawn.choice(["north", "south", ""]),
            "age": "" if row % 9 == 4 else str(drawn.randint(20, 80)),
            "seen": f"2024-0{drawn.randint(1, 9)}-1{drawn.randint(0, 9)}",
            "dose": f"{drawn.random():.3f}",
            "ill": drawn.choice(["no", "yes"]),
        }
        for row in range(rows)
    ]


def written(path, rows, delimiter=",", decimal="."):
    """The rows as a CSV file."""
    with path.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows({key: text.replace(".", decimal) for key, text in row.items()} for row in rows)
    return str(path)
