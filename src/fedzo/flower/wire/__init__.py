"""What travels: messages of arrays and plain values, each read back by an explicit schema.

Nothing is pickled. ``introductions`` are told once, ``tasks`` go down, ``answers`` come up; each
module has what writes a message beside what reads it. May import what ``flower`` may.
"""

from fedzo.flower.wire.answers import (
    Answer,
    answer,
    losses,
    read_answer,
    read_losses,
    read_refusal,
    refusal,
    reply,
)
from fedzo.flower.wire.introductions import Hello, greeting, hello, read_greeting, read_hello
from fedzo.flower.wire.tasks import (
    Packed,
    describe_algorithm,
    model,
    pack,
    read_model,
    read_task,
    read_vector,
    task,
    vector,
)

# The types of messages, by Flower's scheme "category.action".
HELLO, INITIAL, TRAIN, EVALUATE = "query.hello", "query.initial", "train", "evaluate"

__all__ = [
    "EVALUATE",
    "HELLO",
    "INITIAL",
    "TRAIN",
    "Answer",
    "Hello",
    "Packed",
    "answer",
    "describe_algorithm",
    "greeting",
    "hello",
    "losses",
    "model",
    "pack",
    "read_answer",
    "read_greeting",
    "read_hello",
    "read_losses",
    "read_model",
    "read_refusal",
    "read_task",
    "read_vector",
    "refusal",
    "reply",
    "task",
    "vector",
]
