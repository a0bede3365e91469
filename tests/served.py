"""Runs commands for tests: each in a process of its own, forked from one that has imported what all of them need.

python served.py SOCKET                     serves until the socket is gone
python -I -S served.py SOCKET NAME WORDS    attnoracle, pytest or a script for python: the words, folder, environment
                                            and streams go to the server, the exit code comes back
"""

import gc
import io
import json
import os
import runpy
import socket
import sys
from contextlib import redirect_stdout
from multiprocessing import forkserver


def ask(path: str, words: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        told = json.dumps({"words": words, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        socket.send_fds(server, [len(told).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(told)
        code = server.recv(1)
    return code[0] if code else 255


def serve(path: str) -> int:
    # What every command needs, and nothing that reads the environment when it is imported, as triton does.
    import pytest  # noqa: F401

    import attnoracle.oracle.check
    import attnoracle.oracle.cli.app
    import attnoracle.oracle.fleet.pool
    import attnoracle.oracle.reports.table  # noqa: F401
    from attnoracle.oracle.cli.app import main
    from attnoracle.oracle.fleet.confinement import ensure_server

    with redirect_stdout(io.StringIO()):
        main(["check", "--help"])  # so that typer has imported what it puts off

    # Workers of all commands are forked from one server as well. It serves the CPU alone, where Triton interprets.
    os.environ["TRITON_INTERPRET"] = "1"
    ensure_server()
    del os.environ["TRITON_INTERPRET"]
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(8)
    listener.settimeout(1.0)
    while os.path.exists(path):
        try:
            client, _ = listener.accept()
        except TimeoutError:
            client = None
        while _reaped():
            pass
        if client is not None and os.fork() == 0:
            _answer(client)
        if client is not None:
            client.close()
    return 0


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def _answer(client: socket.socket) -> None:
    """In a process that waits for the command's, and tells how that ended."""
    client.settimeout(None)
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    told = b""
    while len(told) < int.from_bytes(size, "big"):
        told += client.recv(1 << 20)
    request = json.loads(told)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        client.sendall(bytes([code if code >= 0 else 128 - code]))
        os._exit(0)
    client.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those that were made before have seen other files behind their numbers.
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 (they last as long as the process)
    # Who asks whether it runs is not its parent, and would start another.
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    path = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [request["cwd"], *dict.fromkeys([*filter(None, path), *sys.path])]
    sys.argv = request["words"]
    _run(*request["words"])


def _run(name: str, *words: str) -> None:
    import pytest

    from attnoracle.oracle.cli.app import program
    from attnoracle.oracle.cli.terminal import leave

    if name == "attnoracle":
        program()
    if name == "pytest":
        leave(int(pytest.main([*words])))
    runpy.run_path(words[0], run_name="__main__")
    leave(0)


if __name__ == "__main__":
    sys.exit(ask(sys.argv[1], sys.argv[2:]) if sys.flags.no_site else serve(sys.argv[1]))
