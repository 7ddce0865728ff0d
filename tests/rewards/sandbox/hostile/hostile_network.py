"""Network: every family of sockets, towards listeners of the test."""

from __future__ import annotations

from hostile_program import Hostile, Stopped


def _socket(name: str, family: str, kind: str, use: str) -> Hostile:
    body = (
        f'sock = attempt("socket", lambda: socket.socket(socket.{family}, socket.{kind}))\n'
        f'if sock:\n    sock.settimeout(1)\n    attempt("use", lambda: sock.{use})'
    )
    stopped = Stopped("seccomp", "finished socket EPERM")
    return Hostile(name, body, stopped, stopped)


NETWORK = [
    _socket("connects_over_tcp", "AF_INET", "SOCK_STREAM", 'connect(("127.0.0.1", target["tcp"]))'),
    _socket("connects_over_tcp6", "AF_INET6", "SOCK_STREAM", 'connect(("::1", target["tcp"]))'),
    _socket("listens_on_tcp", "AF_INET", "SOCK_STREAM", 'bind(("127.0.0.1", 0))'),
    _socket("sends_over_udp", "AF_INET", "SOCK_DGRAM", 'sendto(b"x", ("127.0.0.1", target["udp"]))'),
    _socket("connects_to_a_unix_socket", "AF_UNIX", "SOCK_STREAM", 'connect(target["unix"])'),
    _socket("connects_to_an_abstract_socket", "AF_UNIX", "SOCK_STREAM", 'connect("\\0" + target["abstract"])'),
    _socket("asks_the_kernel_about_the_network", "AF_NETLINK", "SOCK_RAW", "bind((0, 0))"),
]
