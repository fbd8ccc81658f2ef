"""Which parts the objects in a SuperLink's store have.

The fault: Flower takes what was first said of an object for the truth. A node that foresees a part of the
server's next message, or of another node's answer, can announce it with parts that nobody has, and the
message itself is refused. Here the server is believed, and in the end the object's own head, of which its
name is a hash.

The test, by the store's own refusal:
``test_superlink_parts.py::test_the_server_is_believed_about_objects_that_a_node_has_announced``.
"""

from typing import Any

from flwr.supercore.inflatable.inflatable_object import (
    get_object_head_values_from_object_content,
    get_object_id,
    iterate_object_tree,
)
from sqlalchemy import column, delete, insert, select, table, update
from sqlalchemy.orm import Session

from fedpart.flower.workarounds.protocol import message, require

STORED = table("objects", *map(column, ("object_id", "content", "is_available", "ref_count")))
CHILDREN = table("object_children", *map(column, ("parent_id", "child_id")))


def correct(store: Any, tree: Any, believed: bool = True) -> None:
    """Give the objects of ``tree`` that somebody else has announced the children that they have in it.

    Args:
        store: of the SuperLink.
        tree: as somebody announces it.
        believed: also of objects that are here; their own heads have been asked, see :func:`check_children`.
    """
    with store._mutation_session() as session:
        for node in reversed(list(iterate_object_tree(tree))):
            found = select(STORED.c.is_available).where(STORED.c.object_id == node.object_id)
            available = session.scalar(found)
            if available is None or (available and not believed):
                continue
            children = {child.object_id for child in node.children}
            of_node = CHILDREN.c.parent_id == node.object_id
            had = set(session.scalars(select(CHILDREN.c.child_id).where(of_node)))
            session.execute(delete(CHILDREN).where(of_node, CHILDREN.c.child_id.in_(had - children)))
            _count(session, had - children, -1)
            for child in children - had:
                if child not in store:
                    session.execute(insert(STORED).values(object_id=child, content=b""))
                session.execute(insert(CHILDREN).values(parent_id=node.object_id, child_id=child))
            _count(session, children - had, 1)


def _count(session: Session, objects: set[str], by: int) -> None:
    """Change how many parents the objects have."""
    more = {"ref_count": STORED.c.ref_count + by}
    session.execute(update(STORED).where(STORED.c.object_id.in_(objects)).values(more))


def check_children(request: Any, store: Any, most: int) -> None:
    """Let an object have the children that its own head says, whatever has been announced.

    Raises:
        ValueError: it has too many, or no head, or is not the object of that name.
    """
    id, content = request.object_id, request.object_content
    try:
        _, children, _ = get_object_head_values_from_object_content(content)
    except ValueError as error:
        raise ValueError("The object does not begin with a head.") from error
    require(len(children) <= most, f"An object has more than {most} parts.")
    with store.session() as session:
        announced = set(session.scalars(select(CHILDREN.c.child_id).where(CHILDREN.c.parent_id == id)))
    if announced != set(children) and id in store:
        require(get_object_id(content) == id, "The object is not the one of that name.")
        tree = message("ObjectTree")
        correct(store, tree(object_id=id, children=[tree(object_id=child) for child in children]))
