"""What messages cost on their way: as Flower serialises them, and with its requests and HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)

# Bytes as an nginx in front of Flower 1.41 counts them, of nodes with keys: what a request and a
# response have besides their content, an object's name in a list, and a message's own fields.
_REQUEST, _RESPONSE, _NAME, _FIELDS = 830, 157, 97, 230


class Traffic(NamedTuple):
    """Bytes to the server, and to the nodes."""

    up: int = 0
    down: int = 0

    def __add__(self, other: Any) -> Traffic:
        """Return the sum, direction by direction."""
        return Traffic(self.up + other.up, self.down + other.down)


def sizes(message: Any) -> list[int]:
    """Return the bytes of each object that a message is sent as."""
    with no_object_id_recompute():
        return [len(one.deflate()) for one in get_all_nested_objects(message).values()]


def serialised(sent: Iterable[Any], received: Iterable[Any]) -> Traffic:
    """Return the bytes of messages as Flower serialises them."""
    return Traffic(up=sum(sum(sizes(m)) for m in received), down=sum(sum(sizes(m)) for m in sent))


def transported(sent: Iterable[Any], received: Iterable[Any]) -> Traffic:
    """Return the bytes of the requests that carry messages, with HTTP's headers: an estimate.

    A node fetches a message by a request for the message, one for each of its objects and a
    receipt, and sends its answer by one for the message and one for each object. TLS, and what a
    node asks for when there is nothing to do, come on top.
    """
    total = Traffic()
    for message in sent:
        objects = sizes(message)
        count, content = len(objects), sum(objects)
        total += Traffic(
            up=(count + 2) * _REQUEST + (count + 1) * _NAME,
            down=(count + 2) * _RESPONSE + _FIELDS + count * _NAME + content,
        )
    for message in received:
        objects = sizes(message)
        count, content = len(objects), sum(objects)
        total += Traffic(
            up=(count + 1) * _REQUEST + _FIELDS + 2 * count * _NAME + content,
            down=(count + 1) * _RESPONSE + count * _NAME,
        )
    return total
