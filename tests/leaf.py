"""LEAF's files."""

import json


def write_leaf(folder, users, part="train", name="all"):
    """A file of users, ``{user: (x, y)}``; the folder above its part, as text."""
    place = folder / part
    place.mkdir(parents=True, exist_ok=True)
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    (place / f"{name}.json").write_text(json.dumps({"users": [*users], "user_data": data}))
    return str(folder)
