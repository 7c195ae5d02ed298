"""A Flower federation on this machine, of real processes: plain, or secured as in docs/deploy.md.

    python tools/flower_federation.py FOLDER --nodes 3 --secure

makes certificates and node keys in FOLDER and starts, on 127.0.0.1 only,

* a SuperLink with TLS that takes nodes with a registered key only,
* in front of it an nginx that forwards the fleet API, which nodes talk, and nothing else:
  Flower's control API, by which runs are started, asks for no password,
* the nodes, each with a key of its own, connected through the proxy,

and prints the command that runs the example app on it. An interrupt ends every process by its
id. Without --secure there are no keys, no TLS and no proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from fedzo.flower import setup
from fedzo.flower.allowlist import command
from fedzo.flower.setup import Folder, free_port, make_certificates

HOST = "127.0.0.1"
NAME = "here"  # of the connection in Flower's config.toml

# Runs any app, as Flower's own command does, but in a fork of a warm process.
_SUPEREXEC = """
import os, sys
from fedzo.flower.allowlist import superexec

def run(words):
    if words[0] != "flwr-clientapp":  # of the server
        os.execvp(words[0], words)
    from flwr.supernode.cli import flwr_clientapp
    sys.argv = words
    flwr_clientapp()

if __name__ == "__main__":
    superexec(run)
"""

# What `fedzo node start` does with the files of a folder.
_PINNED = """
import sys
from fedzo.flower.allowlist import start_node
start_node(sys.argv[4], sys.argv[1:])
"""


class Federation:
    """A SuperLink, nodes, and a proxy between them if it is secure; ended when it is left.

    Parameters
    ----------
    folder : Path
        Where certificates, keys, logs and Flower's own state go.
    secure : bool
        Whether there are TLS, node keys and the proxy.
    dim : int
        The model's dimension, by which the proxy limits what a node may send at once.
    simulated : bool
        Whether runs have virtual nodes, by Flower's simulation engine, and no others.
    """

    def __init__(
        self, folder: Path, secure: bool = False, dim: int = 7850, simulated: bool = False
    ) -> None:
        self.folder, self.secure, self.dim = folder.resolve(), secure, dim
        self.simulated = simulated
        self.port, self.proxy_port = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self._commands()

    def __enter__(self) -> Self:
        try:
            if self.secure:
                make_certificates(Folder(self.folder, _quiet), "localhost")
            self._connection()
            self.start_superlink()
            if self.secure:
                values = {"name": "localhost", "port": self.proxy_port, "listen": HOST}
                values |= {"superlink": self.port, "body": body_limit(self.dim, devices=50)}
                values["user"] = "user root;" if os.getuid() == 0 else ""
                (self.folder / "log").mkdir(exist_ok=True)
                Folder(self.folder, _quiet).render("nginx.conf", "the proxy", values)
                proxy = [command("nginx"), "-c", str(self.folder / "nginx.conf")]
                self.start("proxy", [*proxy, "-g", "daemon off;"])
                wait_for_port(self.proxy_port)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process, by its id."""
        for name in reversed(list(self.processes)):
            self.end(name)

    def start_superlink(self) -> None:
        """Start the SuperLink."""
        words = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        words += ["--database", str(self.folder / "superlink.sqlite")]
        words += ["--disable-runtime-dependency-installation"]
        words += ["--simulation"] if self.simulated else []
        if self.secure:
            words += ["--ssl-certfile", str(self.folder / "server.pem")]
            words += ["--ssl-keyfile", str(self.folder / "server.key")]
            words += ["--ssl-ca-certfile", str(self.folder / "ca.pem")]
            words += ["--enable-supernode-auth"]
        else:
            words += ["--insecure"]
        self.start("superlink", words)
        wait_for_port(self.port)

    def start_node(
        self,
        name: str,
        config: str,
        key: Path | None = None,
        tls: bool | None = None,
        pinned: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a node; of a secure federation, through the proxy and with its key.

        A pinned node is started by ``fedzo node start`` and runs the apps that it lists.
        """
        tls = self.secure if tls is None else tls
        address = f"{HOST}:{self.proxy_port if self.secure else self.port}"
        options = ["--superlink", address, "--node-config", config]
        words = (
            [sys.executable, "-c", _PINNED, *options] if pinned else ["flower-supernode", *options]
        )
        words += ["--port", str(free_port()), "--max-retries", "3"]
        words += ["--root-certificates", str(self.folder / "ca.pem")] if tls else ["--insecure"]
        words += ["--auth-supernode-private-key", str(key)] if key else []
        init = [command("fedzo"), "node", "init", "--node-config", config]
        subprocess.run(init, env=self.environment(name), cwd=self.folder, check=False)
        return self.start(name, words)

    def register(self, public_key: Path) -> None:
        """Let the node with this key in."""
        self.flwr("supernode", "register", str(public_key), NAME)

    def run(self, app: Path, settings: Mapping[str, object]) -> str:
        """Start a run of an app; return its id."""
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in settings.items())
        told = self.flwr("run", str(app), NAME, "--run-config", config, "--format", "json")
        found = json.loads(told[told.index("{") :])
        if "run-id" not in found:
            raise RuntimeError(f"flwr run {app}: {told}")
        return str(found["run-id"])

    def status(self, run_id: str) -> str:
        """Return what Flower says of a run, like ``running`` or ``finished:completed``."""
        told = self.flwr("list", NAME, "--run-id", run_id, "--format", "json")
        return str(json.loads(told[told.index("{") :])["runs"][0]["status"])

    def log(self, run_id: str) -> str:
        """Return what a run's server app has printed."""
        return self.flwr("log", run_id, NAME, "--show")

    def wait(self, run_id: str, seconds: float) -> str:
        """Wait for the end of a run; return how it ended."""
        deadline, again = time.monotonic() + seconds, 0.0
        while True:
            # Asking Flower starts a process, which takes seconds of a core: look first.
            if not self.server_apps() and time.monotonic() > again:
                if (status := self.status(run_id)).startswith("finished"):
                    return status
                again = time.monotonic() + 10  # its app has not started yet, or has just ended
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run_id} has not ended after {seconds:g} s")
            time.sleep(1)

    def server_apps(self) -> list[int]:
        """Return the processes of the server apps that the SuperLink runs."""
        below = children(self.processes["superlink"].pid)
        return [pid for pid in below if "flwr-serverapp" in command_of(pid)]

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command line; return what it printed."""
        done = subprocess.run(
            [command("flwr"), *arguments],
            env=self.environment("cli"),
            capture_output=True,
            text=True,
            timeout=600,  # a machine may be busy
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"flwr {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process with a home and a log of its own, in a session of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [command(words[0]), *words[1:]],
                env=self.environment(name),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End one of the processes that were started here, and those that it has started."""
        process = self.processes.pop(name)
        below = children(process.pid)
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: quiet, and with its own home for Flower."""
        home = self.folder / f"{name}-home"
        home.mkdir(exist_ok=True)
        connection = self.folder / "config.toml"
        if connection.exists():
            shutil.copy(connection, home / "config.toml")
        return {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on 127.0.0.1 only
            "PATH": os.pathsep.join(self.path),
        }

    @property
    def path(self) -> list[str]:
        """Where a process looks for commands: ours first, then Flower's."""
        own = [str(self.folder / "bin"), str(Path(sys.executable).parent)]
        return own + os.environ.get("PATH", "").split(os.pathsep)

    def _commands(self) -> None:
        """Let the processes for messages be warm, as those in docs/deploy.md are."""
        launcher = self.folder / "bin" / "flower-superexec"
        launcher.parent.mkdir(exist_ok=True)
        code = launcher.with_suffix(".py")
        code.write_text(_SUPEREXEC)
        launcher.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{code}" "$@"\n')
        launcher.chmod(0o755)

    def _connection(self) -> None:
        trust = (
            f'root-certificates = "{self.folder / "ca.pem"}"' if self.secure else "insecure = true"
        )
        address = f"localhost:{self.port}" if self.secure else f"{HOST}:{self.port}"
        lines = ["[superlink]", f'default = "{NAME}"', f"[superlink.{NAME}]"]
        lines += [f'address = "{address}"', trust, ""]
        (self.folder / "config.toml").write_text("\n".join(lines))


def body_limit(dim: int, devices: int) -> int:
    """Return how many bytes a message of a node may have: float64 updates of all its devices."""
    return 8 * dim * devices + 2**20


def children(pid: int) -> list[int]:
    """Return the processes below one, from the system's own table."""
    table: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended in the meantime
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            table.setdefault(parent, []).append(int(entry.name))
    found, heap = [], [pid]
    while heap:
        below = table.get(heap.pop(), [])
        found += below
        heap += below
    return found


def command_of(pid: int) -> str:
    """Return the command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def make_node_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a node's key pair; return both files."""
    public = setup.make_node_key(Folder(folder / name, _quiet))
    return public.with_suffix(""), public


def _quiet(_text: str) -> None:
    pass


def wait_for_port(port: int, seconds: float = 120) -> None:
    """Wait until somebody listens on a port."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((HOST, port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody listens on port {port}") from None
            time.sleep(0.1)
        else:
            return


def interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Have a polite end be one in order, too."""
    raise KeyboardInterrupt


def main() -> None:
    """Start a federation, and keep it until interrupted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--secure", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with Federation(arguments.folder, arguments.secure) as federation:
            serve(federation, arguments.nodes)
    except KeyboardInterrupt:
        print("ended")


def serve(federation: Federation, nodes: int) -> None:
    """Start the nodes, tell how to use them, and wait for an interrupt."""
    for i in range(nodes):
        key = None
        if federation.secure:
            key, public = make_node_key(federation.folder, f"node-{i}")
            federation.register(public)
        federation.start_node(f"node-{i}", f"partition-id={i} num-partitions={nodes}", key)
    federation.environment("cli")
    print(f"{nodes} nodes; logs are in {federation.folder}")
    home = federation.folder / "cli-home"
    print(f"FLWR_HOME={home} flwr run examples/flower-app {NAME} --stream", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
