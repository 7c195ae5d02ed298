"""Set up a server and its nodes: keys, certificates, and the files of nginx, systemd and Flower.

Each command writes into one folder, says what each file is for, and leaves files that exist as they
are, so it can be repeated. The files are templates in ``files``, with ``{{name}}`` for a value.
"""

import contextlib
import datetime
import getpass
import hashlib
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tomli_w
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from fedzo.config.experiment import shipped
from fedzo.core.files import read_toml, write_atomic
from fedzo.core.progress import duration
from fedzo.core.random import Draws, Stream
from fedzo.errors import FedzoError, Halted, UsageError, first_line, require, shown
from fedzo.flower.allowlist import command, environment
from fedzo.flower.errors import quiet_log, short_line
from fedzo.flower.policy import NodeConfig, parse_devices
from fedzo.flower.protocol import directions_checksum
from fedzo.flower.watchdog import ALIVE

TEMPLATES = files("fedzo.flower") / "files"
CONNECTION = "fedzo"  # the SuperLink's name in Flower's configuration
_DAYS = 3650
_SILENT = 90.0  # seconds without contact; a node polls every few seconds


class Folder:
    """A folder of a server or a node, whose files are written once and never overwritten.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> said = []
    >>> folder = Folder(Path(mkdtemp()), said.append)
    >>> folder.add("a.txt", "an example", b"text")
    >>> folder.add("a.txt", "an example", b"other")
    >>> (folder.path / "a.txt").read_text(), said[1].endswith("an example (exists, not changed)")
    ('text', True)
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path, self.say = path.absolute(), say
        if re.search(r"[\s\"';{}]", str(self.path)):  # the files of nginx and systemd have it bare
            text = "must be a path without spaces, quotes, braces and semicolons"
            raise UsageError(f"--dir {shown(str(self.path))}: {text}", code="bad-folder")

    def add(self, name: str, purpose: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file unless it exists; say what it is for."""
        path = self.path / name
        if path.exists():
            self.say(f"{path}: {purpose} (exists, not changed)")
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
                file.write(content)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}", code="cannot-write") from error
        self.say(f"{path}: {purpose}")

    def render(
        self, template: str, purpose: str, values: Mapping[str, object] = {}, to: str = ""
    ) -> None:
        """Write a file from its template."""
        known = {"folder": self.path, "account": getpass.getuser(), "fedzo": command("fedzo")}
        text = filled((TEMPLATES / template).read_text(), {**known, **values})
        self.add(to or template, purpose, text.encode())


def filled(template: str, values: Mapping[str, object]) -> str:
    """Return a template with its values.

    >>> filled("listen {{port}};", {"port": 8443})
    'listen 8443;'
    """
    return re.sub(r"\{\{(\w+)\}\}", lambda found: str(values[found[1]]), template)


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ------------------------------------------------------------------------- keys and certificates


def make_certificates(folder: Folder, name: str) -> None:
    """Make a certificate authority, and a certificate of the server by it."""
    keys = {who: ec.generate_private_key(ec.SECP256R1()) for who in ("ca", "server")}
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fedzo at {name}"[:64])])
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["ca"].public_key())

    def certificate(who: str, subject: x509.Name, own: x509.ExtensionType) -> bytes:
        key = keys[who].public_key()
        made = (
            x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(begin + datetime.timedelta(days=_DAYS))
            .add_extension(x509.BasicConstraints(who == "ca", None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(own, critical=who == "ca")
        )
        return made.sign(keys["ca"], hashes.SHA256()).public_bytes(Encoding.PEM)

    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    names = x509.SubjectAlternativeName(
        [_alternative(one) for one in dict.fromkeys((name, "localhost", "127.0.0.1"))]
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    if (folder.path / "ca.pem").exists():  # a new authority would lock all nodes out
        folder.say(f"{folder.path}: has certificates and keys (not changed)")
        return
    private = {
        who: key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        for who, key in keys.items()
    }
    made = certificate("server", subject, names)
    folder.add("ca.key", "key of the authority: move it to a safe place", private["ca"], 0o600)
    folder.add("server.key", "private key of the server", private["server"], 0o600)
    folder.add("server.pem", "certificate of the server", made)
    folder.add("ca.pem", "authority, which nodes trust", certificate("ca", issuer, usage))


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def make_node_key(folder: Folder) -> Path:
    """Make a node's key pair, as ``ssh-keygen -t ecdsa -b 384`` does; return the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    folder.add("node-key", "private key of the node, which stays here", private, 0o600)
    folder.add("node-key.pub", "public key, for the server", public)
    return folder.path / "node-key.pub"


# ---------------------------------------------------------------------------------- the server


def write_app(folder: Folder, problem: str, devices: int) -> None:
    """Write a Flower app from the template; it is named after its folder."""
    package = re.sub(r"\W", "_", folder.path.name.lower())
    require(package.isidentifier(), "app", folder.path.name, "a folder named like a Python module")
    values = {
        "name": package.replace("_", "-"),
        "package": package,
        "problem": problem,
        "config": problem if problem in shipped() else "",
        "devices": devices,
        "participants": min(devices, 20),
    }
    for file in ("LICENSE", "README.md", "pyproject.toml.txt", *_PACKAGE):
        to = file.replace("package/", f"{package}/").removesuffix(".txt")
        folder.render(f"app/{file}", "part of the app", values, to)


_PACKAGE = [
    f"package/{name}.py.txt" for name in ("__init__", "client_app", "server_app", "black_box")
]


def init_server(
    path: Path,
    say: Callable[[str], None],
    name: str,
    port: int = 8443,
    listen: str = "0.0.0.0",
    superlink: int = 8000,
    app: Path | None = None,
    problem: str = "softmax",
    devices: int = 50,
    dim: int = 10_000,
) -> str:
    """Write all files of a server; return the command that sets a node up."""
    folder, app = Folder(path, say), app or path / "app"
    if not (app / "pyproject.toml").exists():
        write_app(Folder(app, say), problem, devices)
    make_certificates(folder, name)
    body = 8 * dim * devices + 2**20
    values: dict[str, Any] = {
        **{"name": name, "port": port, "listen": listen, "superlink": superlink, "body": body},
        "user": "user root;" if os.getuid() == 0 else "",
    }
    for template, purpose, to in (
        ("nginx.conf", "proxy: TLS, and only what nodes need", ""),
        ("fedzo-server.service", "systemd unit of the server", ""),
        ("config.toml", "where Flower's commands find the server", "flwr/config.toml"),
        ("nodes.toml", "which devices each node may claim", ""),
    ):
        folder.render(template, purpose, values, to)
    settings = {"name": name, "port": port, "superlink": superlink, "app": str(app.absolute())}
    folder.add("server.toml", "address and app of this server", tomli_w.dumps(settings).encode())
    (folder.path / "log").mkdir(exist_ok=True)
    own = read_toml(folder.path / "server.toml")
    public = folder.path / "public"  # derived files, which nodes fetch
    public.mkdir(exist_ok=True)
    with TemporaryDirectory() as empty:
        words = ("build", "--app", own["app"])
        told = _flwr(folder.path, *words, capture_output=True, cwd=empty)
        built = list(Path(empty).glob("*.fab"))
        if not built:
            why = short_line(told.stderr or told.stdout)
            raise UsageError(f"flwr build: {own['app']} is not an app: {why}", code="no-app")
        write_atomic(public / "app.fab", built[0].read_bytes())
    write_atomic(public / "ca.pem", (folder.path / "ca.pem").read_bytes())
    say(f"{public}: certificate authority and app, which nodes fetch")
    directions_checksum()  # compiles what the server app runs when the first node joins,
    Draws(0, Stream.PARTICIPANTS).words(1)  # and what it draws the participants of a round by
    say(f"{folder.path / 'kernels'}: compiled code")
    config = read_toml(Path(own["app"]) / "pyproject.toml")["tool"]["flwr"]["app"]["config"]
    wanted = dict(config.get("problem", {}))
    named = wanted.pop("name", config.get("config") or problem)
    given = " ".join(
        f"--set {key.replace('-', '_')}={value}" for key, value in wanted.items() if value != ""
    )
    return (
        f"fedzo node init --server {own['name']}:{own['port']} --ca {_digest(public / 'ca.pem')} "
        f"--app {_digest(public / 'app.fab')} --problem {named} {given} --devices FIRST-LAST"
    )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def start_server(path: Path) -> None:
    """Run the SuperLink and the proxy until one of them ends, or a signal ends both."""
    folder = path.absolute()
    own = _server(folder)
    files = {
        "--database": "superlink.sqlite",
        "--ssl-certfile": "server.pem",
        "--ssl-keyfile": "server.key",
        "--ssl-ca-certfile": "ca.pem",
    }
    superlink = [
        *(command("flower-superlink"), "--host", "127.0.0.1", "--port", str(own["superlink"])),
        *(word for option, file in files.items() for word in (option, str(folder / file))),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]
    proxy = [command("nginx"), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    if not Path(proxy[0]).exists():
        raise UsageError("nginx is not installed: apt install nginx", code="no-nginx")
    settings = {**os.environ, **environment(folder)}
    for stop in (signal.SIGTERM, signal.SIGINT):  # a shell may have SIGINT ignored
        signal.signal(stop, signal.default_int_handler)
    with contextlib.ExitStack() as running:
        processes = [
            running.enter_context(_running(words, settings)) for words in (superlink, proxy)
        ]
        while all(one.poll() is None for one in processes):
            time.sleep(0.5)
    codes = [one.returncode for one in processes]
    raise Halted(f"the SuperLink or the proxy has ended (codes {codes})", code="server-ended")


@contextlib.contextmanager
def _running(words: list[str], settings: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command until the context is left."""
    process = subprocess.Popen(words, env=settings, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()


def _server(folder: Path) -> dict[str, Any]:
    if not (folder / "server.toml").exists():
        text = f"{folder} is not the folder of a server: run fedzo server init, or give --dir"
        raise UsageError(text, code="no-server")
    return read_toml(folder / "server.toml")


def add_node(path: Path, key: str, devices: str) -> str:
    """Register a node's public key, and bind devices to it; return what was done."""
    folder = path.absolute()
    _server(folder)
    parse_devices(devices)
    kind, _, rest = key.strip().partition(" ")
    require(bool(rest.strip()), "key", kind, "a public key, as fedzo node init prints it")
    digest = hashlib.sha256(rest.split()[0].encode()).hexdigest()[:16]
    file, bindings = folder / "nodes" / f"{digest}.pub", folder / "nodes.toml"
    if digest in bindings.read_text():
        return f"{bindings}: has this node; edit its devices there"
    file.parent.mkdir(exist_ok=True)
    number = file.with_suffix(".id")
    if not number.exists():  # else its line was taken out of nodes.toml
        write_atomic(file, key.encode())
        words = ("supernode", "register", str(file), CONNECTION, "--format", "json")
        told = _flwr(folder, *words, capture_output=True)
        found = re.search(r'"node-id": "?(\d+)', told.stdout)
        if found is None:
            why = short_line(told.stdout + told.stderr)
            raise UsageError(f"Flower did not register the key: {why}", code="register")
        write_atomic(number, found[1].encode())
    node = number.read_text()
    with bindings.open("a") as lines:
        lines.write(f'{node} = "{devices}"  # the key in nodes/{digest}.pub\n')
    return f"node {node} is registered for devices {devices}"


def run_app(path: Path, overrides: Sequence[str], out: Path | None, resume: bool) -> int:
    """Run the server's app on its nodes, and show its log; return Flower's exit code."""
    folder = path.absolute()
    own = _server(folder)
    name = [one.partition("=")[2] for one in overrides if one.startswith("problem.name=")]
    config = {
        "flower.bindings": str(folder / "nodes.toml"),
        "set": " ".join(one for one in overrides if not one.startswith("problem.name=")),
        "resume": resume,
        **({"run-dir": str(out.absolute())} if out is not None else {}),
        **({"problem.name": name[-1]} if name else {}),
    }
    pairs = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    words = ("run", own["app"], CONNECTION, "--stream", "--run-config", pairs)
    return _flwr(folder, *words).returncode


def _flwr(folder: Path, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, **environment(folder)}
    return subprocess.run(
        [command("flwr"), *words], env=settings, text=True, check=False, **options
    )


# ----------------------------------------------------------------------------------- the nodes


def init_node(
    path: Path,
    say: Callable[[str], None],
    server: str,
    ca: str,
    app: str,
    problem: str,
    settings: Mapping[str, Any],
    own: Mapping[str, Any],
    devices: str,
) -> str:
    """Write all files of a node and compile its code; return the command for the server."""
    parse_devices(devices)
    folder = Folder(path, say)
    if not (folder.path / "ca.pem").exists():
        folder.add("ca.pem", "certificate authority of the server", _authority(server, ca))
    public = make_node_key(folder)
    app = app if re.fullmatch("[0-9a-f]{64}", app) else _digest(Path(app))
    values = {"server": server, "devices": devices, "app": app, "problem": json.dumps(problem)}
    values |= {"settings": tomli_w.dumps(settings), "own": tomli_w.dumps(own)}
    folder.render("node.toml", "what this node computes, how much, and for whom: read it", values)
    folder.render("fedzo-node.service", "systemd unit of the node")
    node = NodeConfig.read({"node-file": str(folder.path / "node.toml")})
    made = node.ledger.create()
    say(f"{node.ledger.path}: what the node has spent" + " (exists, not changed)" * (not made))
    say(f"public key for secure sums: {node.ledger.member().key.hex()}")
    (folder.path / "flwr").mkdir(exist_ok=True)
    say(f"{folder.path / 'kernels'}: {_compile(node)}")
    own = node.plain["devices"]  # of the file, which may be older than the options
    return f"fedzo server add {json.dumps(public.read_text().strip())} --devices {own}"


def _authority(server: str, ca: str) -> bytes:
    """Return the server's certificate authority: a file, or fetched and compared with a digest."""
    if Path(ca).is_file():
        return Path(ca).read_bytes()
    url, trusts = f"https://{server}/public/ca.pem", ssl._create_unverified_context()
    try:
        with urllib.request.urlopen(url, timeout=30, context=trusts) as reply:
            found = bytes(reply.read(2**16))
    except (OSError, ValueError) as error:
        raise UsageError(f"{url}: {error}; has the server started?", code="no-server") from error
    if hashlib.sha256(found).hexdigest() != ca.lower():
        text = f"{url} does not have the SHA-256 {ca}: this is not the server that you were told of"
        raise UsageError(text, code="other-server")
    return found


def _compile(node: NodeConfig) -> str:
    """Do two small rounds in this process, so that the first message of a run compiles nothing."""
    from fedzo.algorithms import FedZO
    from fedzo.flower.client import make_client_app
    from fedzo.flower.simulation import InProcessGrid
    from fedzo.flower.strategy import FedzoStrategy
    from fedzo.runs.options import FlowerSettings
    from fedzo.uplinks import Ideal, Seeds

    app = make_client_app(lambda _: node.problem({}, {}), guarded=False)
    grid = InProcessGrid(app, 1, node_config={"devices": node.plain["devices"]})
    settings = FlowerSettings(quorum=1e-9, grace=1e-3, patience=60)
    steps = FedZO(local_steps=1, directions=2)
    try:
        with quiet_log():
            for uplink in (Ideal(), Seeds()):
                FedzoStrategy(steps, uplink, settings=settings).start(grid, num_rounds=2)
    except Exception as error:
        return f"not compiled yet, the first run will: {first_line(error)}"
    return "compiled code"


def start_arguments(path: Path) -> dict[str, str]:
    """Return the options of ``fedzo node start`` for the folder of a node."""
    folder = path.absolute()
    if not (folder / "node.toml").exists():
        text = f"{folder} is not the folder of a node: run fedzo node init, or give --dir"
        raise UsageError(text, code="no-node")
    return {
        "--superlink": str(read_toml(folder / "node.toml").get("superlink", "")),
        "--root-certificates": str(folder / "ca.pem"),
        "--auth-supernode-private-key": str(folder / "node-key"),
        "--node-config": f'node-file="{folder / "node.toml"}"',
        "--port": str(free_port()),  # for the node's own processes
    }


def node_status(path: Path) -> tuple[bool, list[str]]:
    """Return whether a node is healthy, and lines about its health, budget, ε and last round."""
    given = start_arguments(path)
    folder, node = path.absolute(), NodeConfig.parse(given["--node-config"])
    faults, lines = [], []
    try:
        seen = time.time() - (folder / "flwr" / ALIVE).stat().st_mtime
        lines.append(f"last contact with {given['--superlink']}: {duration(seen)} ago")
        if seen > _SILENT:
            faults.append("the node is not running, or cannot reach the server")
    except FileNotFoundError:
        faults.append("the node has not reached the server yet")
    names = ("ca.pem", "node-key")
    faults += [f"{name} is missing" for name in names if not (folder / name).is_file()]
    try:
        totals, last, epsilon = node.ledger.report(node.privacy)
        limits = node.limits
        most = (limits.queries_per_run, limits.queries_per_day, limits.queries)
        for what, spent, limit in zip(("last run", "today", "in total"), totals, most, strict=True):
            lines.append(f"queries, {what}: {spent:,} of {limit:,}")
            if spent >= limit:
                faults.append(f"no queries are left ({what})")
        privacy = node.privacy
        budget = "no [privacy]" if privacy is None else f"{epsilon:.3g} of {privacy.epsilon:g}"
        lines.append(f"epsilon of the most used record: {budget}")
        lines.append(
            f"last round: {'none' if last is None else '{1} of run {0}, {2}'.format(*last)}"
        )
    except FedzoError as error:
        faults.append(str(error))
    return not faults, [f"health: {'; '.join(faults) or 'good'}", *lines]
