"""Make a capture of a gigabyte or more by real programs between two namespaces: `python bench/capture/mix.py PATH`.

A server and its clients are joined by a pair of virtual Ethernet devices without offloads, so that packets are as long
as on a wire. They exchange large files (nginx, curl), pages over kept connections (wrk) and over one connection each
(ab), a mirrored tree (rsync), transactions (mariadbd, sysbench) and names (dnsmasq, dig), one after the other and at
the same time. dumpcap captures all whole packets at the server.

`--bulk` makes the other kind of traffic: only large files (curl) and a mirrored tree (rsync). Packets are as long as
on a wire there, too, but the clients' device merges received packets (GRO), as network cards do, so few of them are
acknowledgements.

Needs root and Debian's packages: nginx-light curl wrk apache2-utils rsync mariadb-server sysbench dnsmasq-base
bind9-dnsutils wireshark-common ethtool iproute2.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = (
    "nginx",
    "curl",
    "wrk",
    "ab",
    "rsync",
    "mariadbd",
    "mariadb-install-db",
    "sysbench",
    "dnsmasq",
    "dig",
)
TOOLS = ("dumpcap", "ethtool", "ip", "nsenter", "unshare")
SERVER, CLIENT = "10.9.0.1", "10.9.0.2"
DATABASE = (
    "--mysql-host=" + SERVER,
    "--mysql-user=bench",
    "--mysql-db=bench",
    "--tables=4",
    "--table-size=5000",
)
NGINX = """
daemon off; user root; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; sendfile on; keepalive_requests 1000000; client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{ listen 80; root {folder}/www; }}
}}
"""
RSYNCD = "[tree]\n path = {folder}/www/tree\n read only = yes\n use chroot = no\n uid = root\n gid = root\n"


class Inside:
    """Runs programs in the server's namespace; the clients' namespace is that of one sleeping process."""

    def __init__(self, folder: Path, scale: float, *, bulk: bool) -> None:
        self.folder, self.scale, self.bulk = folder, scale, bulk
        self.servers: list[subprocess.Popen[bytes]] = []
        self.clients = subprocess.Popen(["unshare", "--net", "sleep", "3600"])
        self.log = (folder / "programs.log").open("ab")

    def run(self, *command: str) -> None:
        subprocess.run(command, check=True, stdout=self.log, stderr=self.log)

    def run_there(self, *command: str) -> None:
        self.together(command)

    def serve(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.servers.append(process)
        return process

    def client(self, *command: str) -> subprocess.Popen[bytes]:
        there = ["nsenter", f"--net=/proc/{self.clients.pid}/ns/net"]
        return subprocess.Popen([*there, *command], stdout=self.log, stderr=self.log)

    def together(self, *commands: Sequence[str]) -> None:
        """Run clients at the same time, and wait for all."""
        running = [(command, self.client(*command)) for command in commands]
        for command, process in running:
            if process.wait(300):
                raise SystemExit(
                    f"{command[0]} failed with status {process.returncode}: {self.said()[-500:]}"
                )

    def said(self) -> str:
        """Return the output of the programs."""
        return (self.folder / "programs.log").read_text(errors="replace")

    def connect(self) -> None:
        while os.readlink(f"/proc/{self.clients.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.01)
        self.run("ip", "link", "add", "server", "type", "veth", "peer", "name", "client")
        self.run("ip", "link", "set", "client", "netns", str(self.clients.pid))
        for name, address, run in (("server", SERVER, self.run), ("client", CLIENT, self.run_there)):
            run("ip", "addr", "add", f"{address}/24", "dev", name)
            run("ip", "link", "set", "lo", "up")
            run("ip", "link", "set", name, "up")
            merged = "on" if self.bulk and name == "client" else "off"
            run("ethtool", "-K", name, "tso", "off", "gso", "off", "gro", merged, "tx", "off")

    def start(self) -> None:
        tree = self.folder / "www" / "tree"
        for number in range(400):
            place = tree / f"{number % 20}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number}.bin").write_bytes(os.urandom(int(250_000 * self.scale)))
        for size in (1_000, 4_000, 30_000):
            (self.folder / "www" / f"{size}.html").write_bytes(os.urandom(size))
        (self.folder / "www" / "large.bin").write_bytes(os.urandom(int(120_000_000 * self.scale)))
        (self.folder / "nginx.conf").write_text(NGINX.format(folder=self.folder))
        (self.folder / "rsyncd.conf").write_text(RSYNCD.format(folder=self.folder))
        self.serve("nginx", "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"))
        self.serve("rsync", "--daemon", "--no-detach", f"--config={self.folder}/rsyncd.conf", "--port=873")
        self.serve(
            "dnsmasq", "-k", "-R", "-h", "-u", "root", "-x", "", "--address=/bench/10.9.0.9", "-a", SERVER
        )
        data = self.folder / "database"
        self.run("mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db")
        grant = self.folder / "grant.sql"
        grant.write_text(
            "create database bench;\ncreate user bench@'%';\ngrant all on bench.* to bench@'%';\n"
        )
        options = (f"--datadir={data}", f"--socket={self.folder}/db", f"--init-file={grant}", "--user=root")
        self.serve("mariadbd", "--no-defaults", *options, f"--bind-address={SERVER}", "--skip-name-resolve")
        for _ in range(100):
            if self.client("sysbench", "oltp_read_write", *DATABASE, "prepare").wait() == 0:
                break
            time.sleep(0.3)
        else:
            raise SystemExit(f"mariadbd does not answer: {self.said()[-500:]}")
        names = self.folder / "names"
        names.write_text("".join(f"host-{number}.bench\n" for number in range(int(4000 * self.scale))))

    def traffic(self) -> None:
        url, seconds = f"http://{SERVER}", max(1, int(6 * self.scale))
        wrk = ("wrk", "-t", "1", "-d", f"{seconds}s")
        large = ("curl", "-s", "--fail", "-o", "/dev/null", f"{url}/large.bin")
        names = ("dig", f"@{SERVER}", "+short", "-f", str(self.folder / "names"))
        bench = ("sysbench", "oltp_read_write", *DATABASE, "--threads=8", f"--time={seconds}", "run")
        count = str(int(8000 * self.scale))
        ab = ("ab", "-q", "-r", "-n", count, "-c", "40")
        mirror = ("rsync", "-a", f"rsync://{SERVER}/tree/", str(self.folder / "mirror"))
        if self.bulk:
            self.together(mirror, *[large] * 3)
            self.together(*[large] * 7)
            return
        self.together(bench, names, (*ab, f"{url}/4000.html"))
        self.together(mirror, (*ab, f"{url}/1000.html"), names)
        self.together((*wrk, "-c", "50", f"{url}/4000.html"), large)
        self.together((*wrk, "-c", "20", f"{url}/30000.html"), bench)
        self.together(*[large] * 5, names)

    def capture(self, path: Path) -> None:
        self.connect()
        self.start()
        path.touch(0o666)
        dump = subprocess.Popen(
            ["dumpcap", "-q", "-P", "-i", "server", "-B", "1024", "-w", str(path)], stderr=subprocess.PIPE
        )
        assert dump.stderr
        while b"File:" not in dump.stderr.readline():
            if dump.poll() is not None:
                raise SystemExit("dumpcap cannot capture")
        self.traffic()
        time.sleep(2)  # dumpcap reads in bursts
        dump.terminate()
        if "Non-2xx" in self.said():
            raise SystemExit(f"pages were refused: {self.said()[-500:]}")
        print(dump.stderr.read().decode().strip(), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of sizes and times")
    parser.add_argument("--bulk", action="store_true", help="large files alone")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    missing = [program for program in (*PROGRAMS, *TOOLS) if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)} (the packages are named by --help)")
    if given.inside:
        with tempfile.TemporaryDirectory(prefix="guestmark-mix-") as folder:
            Inside(Path(folder), given.scale, bulk=given.bulk).capture(given.path.resolve())
        return
    # Everything dies with the first process of a namespace of processes.
    apart = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    own = [sys.executable, __file__, str(given.path), f"--scale={given.scale}", "--inside"]
    own += ["--bulk"] if given.bulk else []
    raise SystemExit(subprocess.run([*apart, *own], check=False).returncode)


if __name__ == "__main__":
    main()
