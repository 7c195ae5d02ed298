"""Secure sums as two state machines: honest ones, and a server or a node that lies."""

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra flower")

from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedzo.flower import secure
from fedzo.flower.errors import ErrorCode, Malformed, Rejected
from fedzo.flower.secure import SEALED, SEED, Member, SumServer, threshold

SIZE = 7


class Sum:
    """All nodes of one attempt, and the server."""

    def __init__(self, nodes=5, run="1", number=1, size=SIZE, **options):
        keys = [bytes([i + 1]) * 32 for i in range(nodes)]
        known = [Member(key).key for key in keys]
        self.nodes = {m.name: m for m in (Member(key, known, **options) for key in keys)}
        self.names = sorted(self.nodes)
        self.server, self.run, self.number = SumServer(self.names), run, number
        generator = np.random.default_rng(nodes)
        rows = generator.integers(-(2**50), 2**50, (nodes, size))
        self.numbers = dict(zip(self.names, rows, strict=True))
        self.attempts, self.masked = {}, {}

    def begin(self, names=None):
        for name in names or self.names:
            self.attempts[name], self.server.shares[name] = self.nodes[name].begin(
                self.run, self.number, self.server.members
            )

    def mask(self, names=None):
        for name in names or self.server.present:
            inbox = self.server.inbox(name)
            self.attempts[name], self.masked[name] = self.nodes[name].mask(
                self.attempts[name], *inbox, self.numbers[name], b""
            )

    def reveal(self, names=None, survivors=None):
        bits, shown = self.server.bits(self.masked if survivors is None else survivors), {}
        for name in names or self.masked:
            self.attempts[name], shown[name] = self.nodes[name].reveal(self.attempts[name], bits)
        return shown

    def plain(self, names):
        return sum(self.numbers[name] for name in names)


def refused(error):
    return error.value.code in (ErrorCode.SECURE, ErrorCode.PEERS)


@pytest.mark.parametrize("nodes", range(3, 31))
def test_thirty_percent_may_drop_out_whatever_the_number_of_nodes(nodes):
    assert nodes - threshold(nodes) >= (3 * nodes) // 10
    assert 3 * (2 * threshold(nodes) - nodes) > nodes  # colluding nodes to get both kinds of shares


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 10), st.randoms(use_true_random=False))
def test_sum_is_exact_with_dropouts_in_any_exchange(nodes, draw):
    one = Sum(nodes)
    lost = draw.sample(one.names, (3 * nodes) // 10)
    first, second = sorted(draw.randrange(len(lost) + 1) for _ in range(2))
    one.begin([n for n in one.names if n not in lost[:first]])
    one.mask([n for n in one.server.present if n not in lost[:second]])
    shown = one.reveal([n for n in one.masked if n not in lost])
    expected = [n for n in one.names if n not in lost[:second]]
    assert np.array_equal(one.server.total(one.masked, shown), one.plain(expected))


def test_sum_wraps_around_like_the_numbers_themselves():
    one = Sum(3)
    one.numbers = {name: np.full(SIZE, -(2**61)) for name in one.names}
    one.begin(), one.mask()
    assert np.array_equal(one.server.total(one.masked, one.reveal()), np.full(SIZE, -3 * 2**61))


def test_too_few_nodes_give_no_sum():
    one = Sum(10)
    one.begin(), one.mask()
    shown = one.reveal(one.names[:6])
    with pytest.raises(Malformed):
        one.server.total(one.masked, shown)


# ------------------------------------------------------------------------- what the server sees


def is_uniform(words):
    """Return whether bytes look uniform: Pearson's test of 256 counts, wrong once in 10^9."""
    counts = np.bincount(np.frombuffer(np.ascontiguousarray(words), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return float(((counts - expected) ** 2 / expected).sum()) < stats.chi2.isf(1e-9, 255)


@pytest.fixture
def known_secrets(monkeypatch):
    """Draw the nodes' secrets from a fixed seed, so that a test is the same each time."""
    monkeypatch.setattr(secure.secrets, "token_bytes", random.Random(3).randbytes)


def words(masked):
    return np.frombuffer(masked, "<u8")


def test_servers_view_is_uniform(known_secrets):
    """Each masked vector, and all but one of them together, for numbers that are all zero."""
    one = Sum(5, size=20_000)
    one.numbers = {name: np.zeros(20_000, np.int64) for name in one.names}
    assert not is_uniform(one.numbers[one.names[0]])  # else the test could not fail
    assert not is_uniform(np.arange(20_000))
    one.begin(), one.mask()
    rows = [words(one.masked[name]) for name in one.names]
    for row in rows:
        assert is_uniform(row)
    for signs in itertools.product([0, 1, -1], repeat=4):  # any but the sum of all five
        if any(signs):
            mixed = sum(np.uint64(s % 2**64) * row for s, row in zip(signs, rows[:4], strict=True))
            assert is_uniform(mixed)
    correlation = np.corrcoef([row.astype(float) for row in rows])
    assert np.abs(correlation - np.eye(5)).max() < 6.5 / np.sqrt(20_000)  # 6.5 deviations


def test_server_that_lies_about_a_dropout_still_sees_a_uniform_vector(known_secrets):
    """It gets the pairwise masks of a node that it calls dropped, but not the node's own."""
    one = Sum(5, size=20_000)
    one.numbers = {name: np.zeros(20_000, np.int64) for name in one.names}
    one.begin(), one.mask()
    victim, others = one.names[2], [n for n in one.names if n != one.names[2]]
    shown = one.reveal(others, survivors=others)
    shares = [(one.names.index(n) + 1, own[2 * SEED : 3 * SEED]) for n, own in shown.items()]
    seeds = one.server._seeds(victim, Shamir.combine(shares))
    left = words(one.masked[victim]).copy()
    for other, seed in zip(others, seeds, strict=True):  # now without pairwise masks
        mask = secure.stream(seed, 20_000)
        left = left - mask if victim < other else left + mask
    assert is_uniform(left)
    left -= secure.stream(one.attempts[victim].seed, 20_000)
    assert not left.any()  # which only its seed, of which no share was revealed, removes


@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 7])
def test_no_split_of_the_nodes_reveals_both_secrets_of_one(nodes):
    """The server tells some nodes that the victim survived, and others that it did not."""
    least = threshold(nodes)
    for told in range(nodes + 1):
        assert min(told, nodes - told) < least
    one = Sum(nodes)
    one.begin(), one.mask()
    victim, others = one.names[0], one.names[1:]
    if nodes - 1 < least:  # then no dropout is allowed at all
        with pytest.raises(Rejected):
            one.reveal(survivors=others)
        return
    alive = one.reveal(one.names[: nodes // 2], survivors=one.names)
    gone = one.reveal(one.names[nodes // 2 :], survivors=others)
    seed = one.attempts[victim].seed
    for shown in (alive, gone):
        shares = [(one.names.index(n) + 1, own[:SEED]) for n, own in shown.items()]
        assert Shamir.combine(shares) != seed
    for shown in (alive, gone):
        with pytest.raises(Malformed):
            one.server.total(one.masked, shown)


# ------------------------------------------------------------------- requests that a node rejects


def test_second_mask_and_other_survivors_are_rejected():
    one = Sum(10)
    one.begin(), one.mask()
    name = one.names[0]
    with pytest.raises(Rejected) as error:
        one.mask([name])
    assert refused(error)
    first = one.reveal([name], survivors=one.names[:8])
    assert one.reveal([name], survivors=one.names[:8]) == first  # the reply may have been lost
    for other in (one.names, one.names[:7], one.names[1:9]):
        with pytest.raises(Rejected) as error:
            one.reveal([name], survivors=other)
        assert refused(error)


@pytest.mark.parametrize("alive", [0, 1, 6])
def test_fewer_than_the_threshold_are_rejected(alive):
    one = Sum(10)
    one.begin(), one.mask()
    with pytest.raises(Rejected) as error:
        one.reveal(survivors=one.names[:alive])
    assert refused(error)
    two = Sum(10)
    two.begin(two.names[:alive] or two.names[:1])
    with pytest.raises(Rejected) as error:
        two.mask(two.names[:1])
    assert refused(error)


@pytest.mark.parametrize(
    ("least", "nodes", "accepted"), [(2, 3, True), (3, 3, False), (1, 2, True)]
)
def test_minimum_of_known_peers(least, nodes, accepted):
    one = Sum(nodes, min_peers=least)
    if accepted:
        one.begin()
        return
    with pytest.raises(Rejected) as error:
        one.begin()
    assert refused(error)


def test_min_peers_counts_survivors_too():
    one = Sum(10, min_peers=8)
    one.begin(), one.mask()
    with pytest.raises(Rejected):
        one.reveal(survivors=one.names[:8])
    one.reveal(survivors=one.names[:9])


def test_nothing_is_revealed_before_it_was_masked_or_for_who_sent_no_shares():
    one = Sum(10)
    one.begin()
    with pytest.raises(Rejected):
        one.reveal(one.names[:1], survivors=one.names)
    two = Sum(10)
    two.begin(two.names[:9]), two.mask()
    with pytest.raises(Rejected):
        two.reveal(survivors=[*two.names[:8], two.names[9]])


def test_server_cannot_pose_as_a_peer():
    """A key that is not configured is rejected; a false ciphertext of a known one, too."""
    one = Sum(4)
    stranger = Member(b"x" * 32, [m.key for m in one.nodes.values()])
    for members in (
        sorted([*one.names[:3], stranger.name]),  # in place of a peer
        sorted([*one.names, stranger.name]),
        one.names[1:],  # without the node itself
    ):
        with pytest.raises(Rejected) as error:
            one.nodes[one.names[0]].begin("1", 1, b"".join(members))
        assert refused(error)
    one.begin()
    posing = Member(b"y" * 32, [m.key for m in one.nodes.values()])
    object.__setattr__(posing, "key", one.nodes[one.names[1]].key)  # says it is node 1
    _, forged = posing.begin("1", 1, one.server.members)
    one.server.shares[one.names[1]] = forged
    with pytest.raises(Rejected) as error:
        one.mask([one.names[0]])
    assert refused(error)


@pytest.mark.parametrize("byte", [0, 15, 16, 32, SEALED - 1])
def test_tampered_ciphertexts_are_rejected(byte):
    one = Sum(4)
    one.begin()
    reply = bytearray(one.server.shares[one.names[1]])
    reply[byte] ^= 1  # the part for node 0
    one.server.shares[one.names[1]] = bytes(reply)
    with pytest.raises(Rejected) as error:
        one.mask([one.names[0]])
    assert refused(error)
    one.mask(one.names[2:3])  # the others' parts are whole


@pytest.mark.parametrize("change", ["run", "number", "members", "context", "direction"])
def test_shares_of_another_sum_are_rejected(change):
    """What a node receives was made for this run, attempt, members, settings and receiver."""
    one = Sum(4, context=b"a")
    one.begin()
    options = {"run": {"run": "2"}, "number": {"number": 2}, "context": {"context": b"b"}}
    other = Sum(5 if change == "members" else 4, **{"context": b"a", **options.get(change, {})})
    other.begin()
    victim, peer = one.names[0], one.names[1]
    if change == "direction":  # its own share for the peer, sent back
        at = SEALED * one.names.index(peer)
        false = one.server.shares[victim][at : at + SEALED]
    else:
        at = SEALED * other.names.index(victim)
        false = other.server.shares[peer][at : at + SEALED]
    bits, inbox = one.server.inbox(victim)
    spoiled = inbox[:SEALED] + false + inbox[2 * SEALED :]
    with pytest.raises(Rejected) as error:
        one.nodes[victim].mask(one.attempts[victim], bits, spoiled, one.numbers[victim], b"")
    assert refused(error)


def test_masks_are_fresh_in_every_attempt():
    first, second = Sum(3), Sum(3, number=2)
    first.begin(), first.mask(), second.begin(), second.mask()
    for name in first.names:
        assert first.masked[name] != second.masked[name]
        assert first.nodes[name]._seed(first.attempts[name], first.names[0]) != second.nodes[
            name
        ]._seed(second.attempts[name], first.names[0])


# -------------------------------------------------------------------------- replies that are false


def test_node_with_a_false_envelope_spoils_a_sum_and_is_noticed():
    one = Sum(10)
    one.begin()
    name = one.names[4]
    one.server.shares[name] = one.server.shares[name][:-1] + b"\0"
    one.mask([n for n in one.names if n != name])
    with pytest.raises(Malformed):
        one.server.total(one.masked, one.reveal())


@pytest.mark.parametrize("reply", [b"", b"x", b"x" * 1000])
def test_replies_of_another_length_do_not_count(reply):
    one = Sum(10)
    one.begin()
    one.server.shares[one.names[0]] = reply
    assert one.server.present == one.names[1:]
    one.mask()
    shown = one.reveal()
    shown[one.names[1]] = reply
    assert np.array_equal(one.server.total(one.masked, shown), one.plain(one.names[1:]))
    with pytest.raises(Malformed):
        one.server.total({**one.masked, one.names[2]: b"12345678"}, shown)


@pytest.mark.parametrize("members", [b"1", b"2" * 8 + b"1" * 8, b"1" * 16, b""])
def test_lists_that_are_no_members(members):
    node = next(iter(Sum(3).nodes.values()))
    with pytest.raises((Malformed, Rejected)):
        node.begin("1", 1, members)
