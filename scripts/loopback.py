"""Run a command in a network of its own that has loopback and nothing else (Linux).

    python scripts/loopback.py COMMAND [ARGUMENTS]

Ray puts the machine's address wherever it is told 127.0.0.1, so that a cluster of tests would
listen to everybody. Where the system gives no such network the command runs in the usual one, and
that is said.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys

UP = 0x8914  # SIOCSIFFLAGS
INSIDE = "SHOAL_LOOPBACK"


def main() -> None:
    command = sys.argv[1:]
    if INSIDE not in os.environ:
        if subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode:
            print("loopback: no network of its own here; Ray listens on the machine's address")
            os.execvp(command[0], command)
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-rn", sys.executable, __file__, *command])
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, UP, struct.pack("16sH14s", b"lo", 1, b""))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
