"""The SuperLink, closed to all but the operator: ``python -m fedpart.flower.workarounds.superlink``.

The faults: Flower's SuperLink offers its three APIs on one port, and lets everybody who reaches it submit a
run, which is code that ServerApp and clients execute. And it sends a message once, whether it arrives or
not. Here a call of the Control API needs the operator's token. The Fleet API (for SuperNodes) and the
Runtime API (for the executor) have keys and secrets of Flower's own; what nodes push is checked besides,
see :mod:`.fleet`, and how much everybody asks, see ``door.py``. A SuperLink that is started again sends the
messages once more that were on their way when it ended.

The tests: ``test_faults.py::test_everybody_may_submit_a_run``, and
``test_a_message_whose_receipt_nobody_has_confirmed_is_not_sent_again`` there.
"""

import argparse
import hmac
import importlib
import os
import sqlite3
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flwr.common.constant import ACCESS_TOKEN_KEY

from fedpart.flower.workarounds.door import open_door
from fedpart.flower.workarounds.fleet import Pushes, guard_instructions, guard_pushes
from fedpart.flower.workarounds.holding import hold_questions
from fedpart.flower.workarounds.tokens import hide_from_database

REDELIVERY_SECONDS = 30.0  # after the start; SuperNodes have tried again before, and confirmed what they have
_UNCONFIRMED = """
    UPDATE {table} SET delivered_at = ''
    WHERE delivered_at != '' AND delivered_at < ? AND message_id IN (SELECT object_id FROM objects)"""
_UNANSWERED = " AND message_id NOT IN (SELECT reply_to_message_id FROM message_res)"


def admit_operator(plugin: Any, token: str) -> Any:
    """Let a SuperLink's plugin that admits everybody to the Control API admit who knows the token.

    Args:
        plugin: Flower's, without accounts.
        token: of the operator.
    """
    admit = plugin.validate_tokens_in_metadata

    def admit_by_token(metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
        said = dict(metadata).get(ACCESS_TOKEN_KEY, b"")
        said = said.encode() if isinstance(said, str) else said
        known: tuple[bool, Any] = admit([])
        return known if hmac.compare_digest(said, token.encode()) else (False, None)

    plugin.validate_tokens_in_metadata = admit_by_token
    return plugin


def redeliver(database: str | Path, before: datetime) -> int:
    """Let messages and replies be fetched again whose receipt has not been confirmed; how many these are.

    Flower notes that a message is delivered before its answer leaves, and sends it once only: a SuperLink
    that ends in between loses it, and the round waits until it times out. A message has its objects here
    until it is confirmed. Should a node have it all the same and reply twice, Flower refuses the second.

    Args:
        database: of the SuperLink.
        before: only those that were delivered earlier than this.
    """
    when = (before.astimezone(UTC).isoformat(),)
    with closing(sqlite3.connect(database, timeout=60.0)) as connection, connection:
        messages = connection.execute(_UNCONFIRMED.format(table="message_ins") + _UNANSWERED, when)
        replies = connection.execute(_UNCONFIRMED.format(table="message_res"), when)
        return messages.rowcount + replies.rowcount


def main() -> None:
    """Take ``--operator-token-file`` away from the arguments, and leave the rest to ``flower-superlink``.

    One of the rest has to be ``--database``: what is checked of pushes is checked there.
    """
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--operator-token-file", type=Path, required=True)
    parser.add_argument("--database", required=True)
    known, rest = parser.parse_known_args()
    token = known.operator_token_file.read_text().strip()
    if not token:
        parser.error(f"{known.operator_token_file} is empty; make it with fedpart keys.")
    if Path(known.database).is_file():
        again = threading.Timer(REDELIVERY_SECONDS, redeliver, (known.database, datetime.now(UTC)))
        again.daemon = True
        again.start()
    sys.argv[1:] = [*rest, "--database", known.database]
    os.umask(0o077)  # its database holds uploads
    # Its package hides it by a function.
    flower: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
    plugin = flower.load_control_authn_plugin
    flower.load_control_authn_plugin = lambda: admit_operator(plugin(), token)
    hide_from_database()
    hold_questions()  # first: what is refused has not come
    pushes = Pushes()
    guard_pushes(pushes)
    guard_instructions(pushes)
    open_door(flower)
    flower.flower_superlink()


if __name__ == "__main__":
    main()
