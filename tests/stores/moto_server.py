"""S3 as moto plays it, on a port of loopback: ``python -m tests.stores.moto_server 9000``.

moto looks whether there is an object, and then puts one: of two conditional puts at one moment both may succeed. Here
requests that write are answered one after the other. Whatever comes is a request of S3: moto's own server looks through
all of Amazon's services at each request, which takes longer than the answer.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from werkzeug.serving import WSGIRequestHandler, make_server

os.environ["MOTO_DISABLE_GLOBAL_CORS"] = "true"  # headers for browsers: read when moto is imported

from moto.core import errors
from moto.server import create_backend_app

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
    errors.ErrorLookupFactory = functools.cache(errors.ErrorLookupFactory)  # type: ignore[assignment, misc]  # its table is made for each error
    application = serial(create_backend_app("s3"))
    make_server("127.0.0.1", port, application, threaded=True, request_handler=_Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
