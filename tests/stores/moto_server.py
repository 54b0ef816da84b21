"""S3 as moto plays it, on a port of loopback: ``python -m tests.stores.moto_server 9000``.

moto looks whether there is an object, and then puts one: of two conditional puts at one moment both may succeed. Here
requests that write are answered one after the other.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

_READS = frozenset({"GET", "HEAD"})


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True


def serial(application: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """Return an application that is asked to write by one request at a time."""
    lock = threading.Lock()

    def ask(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in _READS:
            return application(environ, start_response)
        with lock:
            return list(application(environ, start_response))

    return ask


def main(port: int) -> None:
    """Answer until the process is ended."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = serial(DomainDispatcherApplication(create_backend_app))
    make_server("127.0.0.1", port, application, threaded=True, request_handler=_Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
