r"""Secure sums: the server receives the sum of the nodes' vectors, and no single vector.

Pairwise masks and Shamir shares, as in Bonawitz et al. 2017 and SecAgg+ (Bell et al. 2020). A sum
over n nodes has one *attempt number* and three exchanges:

1. **shares**: node u draws two secrets, a seed :math:`b_u` and a key :math:`m_u`. It splits both
   into n shares, and encrypts the shares for each node. Under :math:`m_u` it encrypts its seeds
   :math:`s_{uv}` of this attempt, the *envelope*.
2. **masked**: node u receives the shares of the others, and sends

   .. math:: y_u = x_u + G(b_u) + \sum_{v > u} G(s_{uv}) - \sum_{v < u} G(s_{uv}) \pmod{2^{64}}.

3. **unmask**: the server lists the survivors, whose :math:`y_u` it has. Each node sends its share
   of :math:`b_u` for every survivor u, and of :math:`m_u` for every other node. The masks between
   survivors cancel. The server computes the rest from the secrets: :math:`G(b_u)` of each
   survivor, and the masks that survivors share with a node whose envelope is opened.

The pairwise keys are an X25519 agreement between the nodes' long-term keys, once per run. A seed
:math:`s_{uv}` is derived from it by HKDF with the run, the attempt and its members. So a server
relays ciphertexts, and a key that is not in a node's configuration takes part in no sum. In the
papers the second secret is a Diffie-Hellman key per attempt; an envelope of derived seeds has the
same use, and needs no keys to be sent.

At least t = floor(2n/3) + 1 shares are needed for a secret, and a node gives one of the two kinds
per node and attempt. To unmask a single :math:`x_u` a server needs both, 2t shares. So it must
collude with at least 2t - n nodes, a third of them, whatever it says about dropouts. Up to n - t
nodes, at least 30 % rounded down, may drop out during a sum.

Primitives: X25519, HKDF-SHA256, AES-CTR (G) and AES-SIV (shares, envelopes) of ``cryptography``,
Shamir's scheme in GF(2^128) of ``pycryptodome``. AES-SIV needs no nonce: what it encrypts here is
random. Flower's own generator of masks is not used: its seed has 32 bits.

References: K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", CCS 2017; J. Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic
Overhead", CCS 2020.
"""

import hashlib
import secrets
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedzo.core.types import Array
from fedzo.flower.errors import ErrorCode, Malformed, Rejected

NAME = 8  # bytes of a member's name: the first ones of its public key
SEED = 16  # bytes of a secret, of a share and of the tag of a ciphertext
SEALED = 3 * SEED  # the tag and two shares
MOST_MEMBERS = 255
MOST_GROUPED = 14  # nodes in a sum: each then sends and receives less than 2 KB for it


def threshold(members: int) -> int:
    """Return t: the number of shares that recover a secret, and the fewest nodes of a sum.

    >>> [threshold(n) for n in (3, 4, 5, 10, 20)]
    [3, 3, 4, 7, 14]
    """
    return 2 * members // 3 + 1


def stream(seed: bytes, size: int) -> Array:
    """Return G(seed): this number of uniform uint64, by AES in counter mode."""
    encryptor = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * size)), "<u8").astype(np.uint64)


def names_in(text: bytes) -> list[bytes]:
    """Return the names of a list of members: sorted, each once."""
    names = [text[i : i + NAME] for i in range(0, len(text), NAME)]
    if len(text) % NAME or names != sorted(set(names)) or len(names) > MOST_MEMBERS:
        raise Malformed("the members of a sum are not a sorted list of names", "members")
    return names


def names_of(bits: bytes, names: Sequence[bytes]) -> list[bytes]:
    """Return the names whose bits are set."""
    flags = np.unpackbits(np.frombuffer(bits, np.uint8))
    if len(bits) != -(-len(names) // 8) or flags[len(names) :].any():
        raise Malformed(f"{len(bits)} bytes do not mark {len(names)} members", "members")
    return [name for name, there in zip(names, flags, strict=False) if there]


def can_agree(key: bytes) -> bool:
    """Return whether a public key agrees on secrets: one of low order would have no secret.

    >>> can_agree(bytes(32)), can_agree(Member(b"1" * 32).key)
    (False, True)
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


class Attempt(NamedTuple):
    """The state of a node in one attempt; it must be on disk before a reply leaves the node."""

    run: str
    number: int
    members: bytes  # their names
    seed: bytes  # b_u
    task: bytes = b""  # a digest of what was summed; set by `mask`
    present: bytes = b""  # bits: the members whose shares have arrived; set by `mask`
    inbox: bytes = b""  # their shares, encrypted; set by `mask`
    survivors: bytes = b""  # bits; set by `reveal`


def _refuse(text: str) -> Rejected:
    return Rejected(ErrorCode.SECURE, text)


@dataclass(frozen=True)
class Member:
    """A node's side of secure sums. Every method checks what the server says.

    Parameters
    ----------
    secret : bytes
        The node's long-term private key, 32 bytes.
    peers : sequence of bytes
        The public keys of the nodes that it knows.
    min_peers : int
        The smallest number of them in a sum.
    context : bytes
        Settings in which all members must agree. If they differ, no share can be decrypted.

    Examples
    --------
    >>> secrets = [bytes([i]) * 32 for i in (1, 2, 3)]
    >>> keys = [Member(secret).key for secret in secrets]
    >>> nodes = {m.name: m for m in (Member(secret, keys) for secret in secrets)}
    >>> server = SumServer(sorted(nodes))
    >>> first = {name: m.begin("run", 1, server.members) for name, m in nodes.items()}
    >>> server.shares = {name: reply for name, (_, reply) in first.items()}
    >>> done = {}
    >>> for name, (attempt, _) in first.items():
    ...     numbers = np.array([1, -5], np.int64)
    ...     done[name] = nodes[name].mask(attempt, *server.inbox(name), numbers, b"")
    >>> masked = {name: reply for name, (_, reply) in done.items()}
    >>> bits = server.bits(masked)
    >>> shown = {name: nodes[name].reveal(done[name][0], bits)[1] for name in nodes}
    >>> server.total(masked, shown)
    array([  3, -15])
    """

    secret: bytes
    peers: Sequence[bytes] = ()
    min_peers: int = 2
    context: bytes = b""

    @cached_property
    def _private(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self.secret)

    @cached_property
    def key(self) -> bytes:
        """The public key, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    @property
    def name(self) -> bytes:
        """The name by which messages refer to this node."""
        return self.key[:NAME]

    def begin(self, run: str, number: int, members: bytes) -> tuple[Attempt, bytes]:
        """Draw the secrets of an attempt; return its state, and the shares and the envelope."""
        names = self._check(members)
        attempt = Attempt(run, number, members, secrets.token_bytes(SEED))
        key, least = secrets.token_bytes(SEED), threshold(len(names))
        halves = _split(attempt.seed, least, names), _split(key, least, names)
        shares = zip(names, *halves, strict=True)
        sealed = [self._box(attempt, v).encrypt(b + m, [self.name, v]) for v, b, m in shares]
        seeds = b"".join(self._seed(attempt, v) for v in names if v != self.name)
        return attempt, b"".join((*sealed, _envelope(key).encrypt(seeds, None)))

    def mask(
        self, attempt: Attempt, present: bytes, inbox: bytes, numbers: Array, task: bytes
    ) -> tuple[Attempt, bytes]:
        """Return the state, and the masked numbers (int64); ``inbox`` are the others' shares."""
        if attempt.present:
            raise _refuse("numbers were masked in this attempt before")
        names = self._enough(attempt, present)
        if len(inbox) != SEALED * len(names):
            raise Malformed("one ciphertext per member is needed", "inbox")
        attempt = attempt._replace(present=present, inbox=inbox, task=task)
        self._opened(attempt)
        masked = numbers.view(np.uint64) + stream(attempt.seed, len(numbers))
        for name in names:
            if name != self.name:
                mask = stream(self._seed(attempt, name), len(numbers))
                masked = masked + mask if self.name < name else masked - mask
        return attempt, masked.astype("<u8").tobytes()

    def reveal(self, attempt: Attempt, survivors: bytes) -> tuple[Attempt, bytes]:
        """Return the state, and one share per present member: of b_u if it survived, else of m_u.

        For one attempt the survivors are the same in all requests.
        """
        if not attempt.present:
            raise _refuse("nothing was masked in this attempt")
        if attempt.survivors not in (b"", survivors):
            raise _refuse("shares were revealed for other survivors")
        alive, names = self._enough(attempt, survivors), self._enough(attempt, attempt.present)
        if not set(alive) <= set(names):
            raise _refuse("a survivor did not send shares")
        shares = zip(names, self._opened(attempt), strict=True)
        told = [share[:SEED] if name in alive else share[SEED:] for name, share in shares]
        return attempt._replace(survivors=survivors), b"".join(told)

    def _check(self, members: bytes) -> list[bytes]:
        names = names_in(members)
        unknown = set(names) - {key[:NAME] for key in (self.key, *self.peers)}
        if self.name not in names or unknown:
            text = f"the sum has {len(unknown)} nodes that are not in [secure] peers"
            raise Rejected(ErrorCode.PEERS, text)
        if len(names) <= self.min_peers:
            text = f"{len(names) - 1} peers in a sum, fewer than min_peers"
            raise Rejected(ErrorCode.PEERS, text)
        return names

    def _enough(self, attempt: Attempt, bits: bytes) -> list[bytes]:
        """Return the names of some members, if they are enough for a sum."""
        names = names_in(attempt.members)
        some, least = names_of(bits, names), max(threshold(len(names)), 1 + self.min_peers)
        if len(some) < least:
            raise _refuse(f"{len(some)} of {len(names)} nodes, {least} are needed")
        return some

    def _opened(self, attempt: Attempt) -> list[bytes]:
        """Return the two shares that each present member has sent to this node."""
        parts = (attempt.inbox[i : i + SEALED] for i in range(0, len(attempt.inbox), SEALED))
        try:
            return [
                self._box(attempt, name).decrypt(part, [name, self.name])
                for name, part in zip(self._enough(attempt, attempt.present), parts, strict=True)
            ]
        except InvalidTag:
            text = "a share was not encrypted for this sum by the peer that it is said to be from"
            raise _refuse(text) from None

    def _box(self, attempt: Attempt, peer: bytes) -> AESSIV:
        return AESSIV(self._derived(b"share", attempt, peer, 2 * SEED))

    def _seed(self, attempt: Attempt, peer: bytes) -> bytes:
        return self._derived(b"mask", attempt, peer, SEED)

    def _derived(self, use: bytes, attempt: Attempt, peer: bytes, size: int) -> bytes:
        """Return a key that only this node and a peer know, for one use in one attempt."""
        (key,) = {key for key in (self.key, *self.peers) if key[:NAME] == peer}
        agreed = self._private.exchange(X25519PublicKey.from_public_bytes(key))
        about = hashlib.sha256(attempt.members + hashlib.sha256(self.context).digest())
        number = struct.pack("<q", attempt.number)
        where = b"|".join((b"fedzo", use, attempt.run.encode(), number, about.digest()))
        return HKDF(SHA256(), size, salt=None, info=where).derive(agreed)


@dataclass
class SumServer:
    """The server's side of one attempt.

    ``names`` are the members, sorted. ``shares`` are the replies to the first exchange, by name.
    """

    names: Sequence[bytes]
    shares: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def members(self) -> bytes:
        """The names of all members, joined."""
        return b"".join(self.names)

    @property
    def least(self) -> int:
        """The number of members that must reply to each exchange."""
        return threshold(len(self.names))

    @property
    def present(self) -> list[bytes]:
        """The members that have sent shares of the right length."""
        size = (SEALED + SEED) * len(self.names)  # an envelope has a tag and n - 1 seeds
        return [name for name in self.names if len(self.shares.get(name, b"")) == size]

    def bits(self, some: Iterable[bytes]) -> bytes:
        """Return which members are in ``some``, one bit each."""
        chosen = set(some)
        return np.packbits(np.array([name in chosen for name in self.names], bool)).tobytes()

    def inbox(self, name: bytes) -> tuple[bytes, bytes]:
        """Return the present members as bits, and their ciphertexts for one of them."""
        at = SEALED * self.names.index(name)
        sealed = [self.shares[sender][at : at + SEALED] for sender in self.present]
        return self.bits(self.present), b"".join(sealed)

    def total(self, masked: Mapping[bytes, bytes], revealed: Mapping[bytes, bytes]) -> Array:
        """Return the sum of the numbers of all survivors, the nodes in ``masked``, as int64.

        Raises :class:`Malformed` if too few shares are there, or if they do not fit.
        """
        present = self.present
        valid = {n: own for n, own in revealed.items() if len(own) == SEED * len(present)}
        if len(valid) < self.least or len(masked) < self.least:
            raise Malformed(f"shares of {len(valid)} nodes, {self.least} are needed", "shares")
        rows = [np.frombuffer(own, "<u8").astype(np.uint64) for own in masked.values()]
        if len({len(row) for row in rows}) > 1:
            raise Malformed("the nodes sent vectors of different lengths", "masked")
        total: Array = np.stack(rows).sum(axis=0, dtype=np.uint64)
        chosen = [(self.names.index(n) + 1, own) for n, own in valid.items()][: self.least]
        for i, name in enumerate(present):
            secret = _combine([(at, own[SEED * i : SEED * (i + 1)]) for at, own in chosen])
            if name in masked:
                total -= stream(secret, len(total))
                continue
            others = [other for other in self.names if other != name]
            for other, seed in zip(others, self._seeds(name, secret), strict=True):
                if other in masked:
                    mask = stream(seed, len(total))
                    total = total - mask if other < name else total + mask
        return np.asarray(total.view(np.int64))

    def _seeds(self, name: bytes, key: bytes) -> list[bytes]:
        """Return the pairwise seeds in the envelope of a node that dropped out."""
        try:
            seeds = _envelope(key).decrypt(self.shares[name][SEALED * len(self.names) :], None)
        except InvalidTag:
            text = "the envelope of a node that dropped out cannot be opened"
            raise Malformed(text, "shares") from None
        return [seeds[i : i + SEED] for i in range(0, len(seeds), SEED)]


def _envelope(key: bytes) -> AESSIV:
    return AESSIV(HKDF(SHA256(), 2 * SEED, salt=None, info=b"fedzo|envelope").derive(key))


def _split(secret: bytes, least: int, names: Sequence[bytes]) -> list[bytes]:
    from Crypto.Protocol.SecretSharing import Shamir

    return [bytes(share) for _, share in Shamir.split(least, len(names), secret, False)]


def _combine(shares: list[tuple[int, bytes]]) -> bytes:
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine(shares, False))
