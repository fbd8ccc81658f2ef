"""Abuses a SuperLink with the key of a registered node, and says what it was answered.

In docker-compose.yml's federation, with client 3 in the hostile part, beside a run of the others:

    docker compose stop supernode-3 clientapp-3
    docker run --rm --network fedpart_fleet -v fedpart_supernode-3-keys:/keys:ro \
        -v $PWD:/checkout:ro -w /checkout -e PYTHONPATH=/checkout fedpart \
        python benchmarks/checks/abuse.py superlink:8000 --keys /keys --minutes 20
"""

from __future__ import annotations

import threading
from pathlib import Path

from benchmarks.checks.hostile_node import Hostile
from benchmarks.script import parser, start, tell
from simulations.deployment.keys import CA

PAUSE = 15.0  # seconds, in which what a node may ask has come back, however much it was refused


def main() -> int:
    asked = parser(__doc__)
    asked.add_argument("address", help="of the SuperLink, HOST:PORT")
    asked.add_argument("--keys", type=Path, required=True, help="folder of the node's keys")
    asked.add_argument("--minutes", type=float, default=20.0)
    given = asked.parse_args()
    hostile = Hostile(given.address, given.keys / CA, given.keys, PAUSE)
    timer = threading.Timer(60 * given.minutes, hostile.over.set)
    timer.start()
    hostile.start()
    hostile.join()
    timer.cancel()
    found = {
        kind: {str(s): n for (one, s), n in sorted(hostile.answers.items()) if one == kind}
        for kind in Hostile.kinds()
    }
    for kind, answers in found.items():
        tell(abuse=kind, answers=answers)
    faults = sum(n for (_, status), n in hostile.answers.items() if status >= 500)
    tell(
        kinds=len(found),
        met_429_alone=sum(answers.keys() == {"429"} for answers in found.values()),
        answers=hostile.answers.total(),
        server_faults=faults,
        failed=None if hostile.failed is None else repr(hostile.failed),
    )
    return int(faults > 0 or hostile.failed is not None or not all(found.values()))


if __name__ == "__main__":
    start(main, main)
