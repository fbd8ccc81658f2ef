"""How long to wait before the next look for something that comes when it comes.

The fault: Flower looks for replies and messages every three seconds, and every half second, whatever a round
takes; no setting changes that.

The test: ``test_faults.py::test_flower_waits_as_long_as_ever_between_two_looks``.
"""

from __future__ import annotations

SHARE, SHORTEST = 0.1, 0.02  # of the time that has passed; seconds


def pause(passed: float, longest: float) -> float:
    """Seconds until the next look, in proportion to how long the looking has gone on.

    What takes long is looked for seldom, and found at most a tenth later than it came. A node that a large
    federation seldom asks costs its server as little as one that is asked often.

    Args:
        passed: seconds since the first look.
        longest: seconds that Flower waits.
    """
    return min(max(SHARE * passed, SHORTEST), longest)
