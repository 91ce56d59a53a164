"""`vit serve`: answers of a finished model in a browser and over HTTP."""

import argparse
import logging
import os
import re
import socket
import ssl
import warnings
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vit import signals
from vit.cli.arguments import OneLineParser, add_engine, asked_device, chosen_device, whole_number
from vit.cli.arguments import number as seconds
from vit.console import say
from vit.errors import UserError, needed
from vit.hardware import memory_field

EPILOG = """\
examples:
  vit serve runs/my_photos-finetune         then open http://127.0.0.1:8000/ in a browser
  curl --data-binary @photo.jpg http://127.0.0.1:8000/classify
  VIT_TOKEN=$(openssl rand -hex 16) vit serve runs/my_photos-finetune --host 0.0.0.0

Ctrl-C or SIGTERM ends it when the requests in hand are answered."""


def parser() -> OneLineParser:
    """The options of `vit serve`."""
    about = "Answers requests with a trained model, in a browser and over HTTP."
    command = OneLineParser(prog="vit serve", description=about, epilog=EPILOG)
    add = command.add_argument
    add("model", help="a run, a weights file, a file of `vit export`, a name, or an address")
    add("--raw", action="store_true", help="probabilities without the run's temperature")
    add("--device", help="such as cpu or cuda; default: a GPU if there is one")
    add_engine(add)
    add("--precision", choices=("float32", "bfloat16"), default="float32", help="default: float32")
    count = {"type": whole_number, "metavar": "N"}
    text = "of the model in PyTorch, and pictures decoded at once (default: one per core)"
    add("--threads", **count, help=text)
    add("--batch", **count, help="pictures computed at once (default: 1; on a GPU 32)")
    time = {"type": seconds, "metavar": "S"}
    add("--wait-ms", **time, default=2, help="milliseconds for a full batch (default: 2)")
    add = command.add_argument_group("who may ask").add_argument
    add("--host", default="127.0.0.1", help="address (default: 127.0.0.1, this machine alone)")
    add("--port", type=int, default=8000, help="default: 8000; 0 for a free one")
    add(
        "--name",
        action="append",
        type=_host,
        default=[],
        help="a further name of this server, as of a proxy",
    )
    add("--token-file", metavar="FILE", help="the token that is asked for (default: VIT_TOKEN)")
    add("--ssl-certfile", metavar="FILE", help="certificate, for https")
    add("--ssl-keyfile", metavar="FILE", help="its key")
    add = command.add_argument_group("limits").add_argument
    add("--queue", **count, default=64, help="pictures at once (default: 64)")
    add("--max-bytes", **count, default=2**25, help="of a request (default: 32 MiB)")
    add("--read-timeout", **time, default=10, help="for a request to arrive (default: 10)")
    add("--drain", **time, default=10, help="for the last answers at the end (default: 10)")
    return command


def run(args: list[str]) -> int:
    """Answers until a signal ends it."""
    options = parser().parse_args(args)
    needed("uvicorn", "serve")
    logging.disable(logging.ERROR)  # of libraries, about what clients send
    options.token = _token(options.token_file)
    files = options.ssl_certfile or "", options.ssl_keyfile
    try:
        if any(files):
            ssl.create_default_context().load_cert_chain(*files)
    except OSError as error:  # an SSLError is one
        raise UserError("--ssl-certfile {} --ssl-keyfile {}: {}".format(*files, error)) from error
    with _listener(options.host, options.port) as listener:
        host, port, *_ = listener.getsockname()
        if not options.token and (options.name or not ip_address(host).is_loopback):
            raise UserError(
                "a server that others reach needs a token: set VIT_TOKEN, or give --token-file FILE"
            )
        server = _server(options)
        scheme = "https" if options.ssl_certfile else "http"
        host = "localhost" if ip_address(host).is_unspecified else host
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"ready: {scheme}://{place}/ (Ctrl-C ends it)", flush=True)
        try:
            server.run(sockets=[listener])
        except signals.Stopped as stop:  # not to wait for a picture that takes long
            say("vit: stopped")
            signals.end_at_once(128 + stop.number)
    return 0


def _server(options: argparse.Namespace) -> Any:
    """The server with a model that is warm."""
    import torch
    import uvicorn

    from vit.extensions.serve.application import Service
    from vit.extensions.serve.guard import Guard
    from vit.extensions.serve.model_thread import ModelThread
    from vit.extensions.serve.protocol import Server, TimedProtocol
    from vit.inference.classifier import load

    warnings.simplefilter("ignore")  # readers at the same time would change the filters in turns
    engine = {"engine": options.engine, "precision": options.precision}
    classifier = load(options.model, **engine, raw=options.raw)
    with chosen_device(asked_device(options)) as device:
        classifier.to(device)
    options.batch = options.batch or (1 if torch.device(device).type == "cpu" else 32)
    options.threads = options.threads or torch.get_num_threads()
    model = ModelThread(classifier, options.batch, options.wait_ms / 1000, options.threads)
    model.warm_up()
    service = Service(model, options)
    used = (memory_field("/proc/self/status", "VmRSS") or 0) / 2**30
    where = f"{classifier.runtime or 'PyTorch'} on {device}"
    say(f"{where}, batches of {options.batch}; memory: {used:.1f} GB before the first request")
    config = uvicorn.Config(
        Guard(service.application, options, service.metrics.add_request),
        http=partial(TimedProtocol, read_timeout=options.read_timeout),  # pyright: ignore
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=options.drain,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
    )
    return Server(config)


def _host(text: str) -> str:
    """The host of a name or an address, such as https://photos.example.org/."""
    return urlsplit(text if "//" in text else f"//{text}").hostname or text


def _token(file: str | None) -> str:
    """The token of a file, or of VIT_TOKEN. UserError for an empty file, and for odd characters."""
    token = (
        os.environ.get("VIT_TOKEN", "")
        if file is None
        else Path(file).expanduser().read_text(errors="replace")
    )
    if not re.fullmatch("[!-~]+" if file else "[!-~]*", token.strip()):
        place = "VIT_TOKEN" if file is None else f"--token-file {file}"
        raise UserError(f"{place} has no token of letters, digits and signs without blanks")
    return token.strip()


def _listener(host: str, port: int) -> socket.socket:
    """A socket that takes connections, which wait. UserError for an address that is not free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=1024)
        # asyncio leaves it out for this socket; an answer, two parts, would take 40 ms longer.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: {error}; choose another") from error
