"""What the SuperLink's wrapper does to Flower's database when it is started again."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import sqlalchemy
from flwr.supercore.state.schema.linkstate_models import LinkStateBase
from flwr.supercore.state.schema.objectstore_models import ObjectStoreBase
from sqlalchemy import create_engine

from fedpart.flower.workarounds.superlink import redeliver

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def test_what_was_on_its_way_is_sent_again(tmp_path):
    """Unconfirmed and delivered before the start; not what is answered, confirmed, waiting or newer."""
    engine = create_engine(f"sqlite:///{tmp_path / 'state.db'}")
    for base in (LinkStateBase, ObjectStoreBase):
        base.metadata.create_all(engine)
    early, late = ((START + timedelta(seconds=s)).isoformat() for s in (-1, 1))
    messages = {"lost": early, "answered": early, "confirmed": early, "waiting": "", "new": late}
    replies = {"to lost reply": early, "to answered": "", "to confirmed": early}
    tables = {**LinkStateBase.metadata.tables, **ObjectStoreBase.metadata.tables}
    with engine.begin() as connection:
        for name, times in (("message_ins", messages), ("message_res", replies)):
            for id, delivered in times.items():
                answered = id.partition(" ")[2]
                row = {"message_id": id, "delivered_at": delivered, "reply_to_message_id": answered}
                connection.execute(sqlalchemy.insert(tables[name]).values(row))
        for id in ("lost", "answered", "waiting", "new", "to lost reply", "to answered"):
            connection.execute(sqlalchemy.insert(tables["objects"]).values(object_id=id))
    assert redeliver(tmp_path / "state.db", START) == 2
    with closing(engine.connect()) as connection:
        for name, times in (("message_ins", messages), ("message_res", replies)):
            wanted = sqlalchemy.select(tables[name].c.message_id, tables[name].c.delivered_at)
            found = dict(connection.execute(wanted).all())
            assert found == {**times, **{id: "" for id in times if id in ("lost", "to lost reply")}}
    assert redeliver(tmp_path / "state.db", START) == 0
