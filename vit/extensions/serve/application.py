"""The addresses of a server: pictures in, the rows of `vit classify --json` out."""

import asyncio
import ctypes
import io
import math
import sys
from argparse import Namespace
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from mimetypes import guess_type
from pathlib import Path
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from vit.console import say
from vit.data.decode import ImageError, NamedBytes
from vit.errors import UserError, did_you_mean, shorten
from vit.extensions.openers.received import open_received
from vit.extensions.serve.guard import refused
from vit.extensions.serve.metrics import Metrics
from vit.extensions.serve.model_thread import ModelThread
from vit.extensions.serving.reading import reading_problem
from vit.inference.answers import PredictOptions
from vit.inference.classifier import Classifier
from vit.preprocessing import size_of
from vit.tables import NotInstalled, resolve, rows

FILES = ("page/index.html", "page/page.js", "page/page.css", "openapi.json")
"""What is answered as it is; index.html to a request for /."""
LARGE = 2**24
"""Pixels of a picture whose memory is returned to the system at once."""
OFFERED = {"coverage": 0.9, "unknown": 0.95}
"""Numbers with which the page asks for answers."""


class Service:
    """Answers of one classifier over HTTP; `application` is ASGI."""

    def __init__(self, model: ModelThread, options: Namespace) -> None:
        """`options`: queue, max_bytes, threads and token of `vit serve`."""
        self._model, self._limits, self._places = model, options, options.queue
        self._classifier = model.classifier
        # A reader decodes alone: PyTorch's threads belong to the model.
        self._readers = ThreadPoolExecutor(options.threads, "reader", torch.set_num_threads, (1,))
        self._asked = lru_cache(64)(partial(_options, model.classifier))
        self._glance = _glance(model.classifier)
        self.metrics = Metrics(options.queue, lambda: options.queue - self._places)
        MultiPartParser.spool_max_size = options.max_bytes  # no part is written to a file
        handlers: Any = {HTTPException: _refused, ClientDisconnect: _failed, Exception: _failed}
        app = Starlette(exception_handlers=handlers)
        app.router.redirect_slashes = False
        app.add_route("/classify", self._classify, ["POST"])
        app.add_route("/explain", self._explain, ["POST"])
        app.add_route("/metrics", self._counts)
        app.add_route("/health", self._health)
        for path in (Path(__file__).parent / name for name in FILES):
            response = Response(path.read_bytes(), media_type=guess_type(path)[0])
            address = f"/{path.name}".replace("index.html", "")
            app.add_route(address, lambda _, response=response: response)
        self.application = app

    async def _health(self, _: Request) -> Response:
        offered = {}
        for name, number in OFFERED.items():
            with suppress(UserError):
                self._asked(((name, str(number)),))
                offered[name] = number
        facts = {"status": "ready", "classes": len(self._classifier.classes), "options": offered}
        facts |= {"multilabel": self._classifier.multilabel, "max_bytes": self._limits.max_bytes}
        facts |= {"token": bool(self._limits.token), "explain": self._glance and self._glance[0]}
        return JSONResponse(facts)

    async def _counts(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    @contextmanager
    def _taken(self, count: int) -> Iterator[None]:
        """Places in the queue. Raises HTTPException if there are not as many."""
        if count > self._places:
            raise HTTPException(503, "the queue is full; ask again", {"Retry-After": "1"})
        self._places -= count
        try:
            yield
        finally:
            self._places += count

    async def _classify(self, request: Request) -> Response:
        try:
            options = self._asked(tuple(request.query_params.multi_items()))
        except (UserError, OverflowError) as error:  # the latter of numbers with many digits
            raise HTTPException(400, str(error)) from error
        with self.metrics.seconds.time(), self._taken(1):
            pictures = await self._pictures(request)
            with self._taken(len(pictures) - 1):
                answers = await _unless_gone(request, self._rows(pictures, options))
        if len(answers) == 1 and "error" in answers[0]:
            raise HTTPException(400, answers[0]["error"])
        return JSONResponse(answers)

    async def _rows(self, pictures: list[NamedBytes], options: PredictOptions) -> list[Any]:
        return await asyncio.gather(*(self._row(picture, options) for picture in pictures))

    async def _row(self, picture: NamedBytes, options: PredictOptions) -> dict[str, Any]:
        """The row of one picture; `image` and `error` for one that cannot be read."""
        try:
            pixels = await self._read(picture, self._classifier.preprocess)
        except HTTPException as error:
            return {"image": picture.name, "error": error.detail}
        prediction = await asyncio.wrap_future(self._model.predict(pixels, options))
        self.metrics.add(prediction)
        return prediction.row(picture.name)

    async def _explain(self, request: Request) -> Response:
        if (glance := self._glance) is None:
            raise HTTPException(404, "this model has no picture of what it looks at")

        def drawn(image: Any) -> Any:
            # A reader waits with the image, so that no more are open than there are readers.
            return self._model.thread.submit(_drawn, self._classifier, glance[1], image).result()

        with self._taken(1):
            picture, *others = await self._pictures(request)
            if others:
                raise HTTPException(400, f"{len(others) + 1} pictures; send one")
            look = await _unless_gone(request, self._read(picture, drawn))
        look.save(file := io.BytesIO(), "png")
        return Response(file.getvalue(), media_type="image/png")

    async def _read(self, picture: NamedBytes, function: Callable[[Any], Any]) -> Any:
        """`function` of the picture, opened in a reader. Raises HTTPException."""
        run = asyncio.get_running_loop().run_in_executor
        try:
            return await run(self._readers, self._opened, picture, function)
        except (ImageError, MemoryError) as error:
            self.metrics.unreadable.inc()
            raise HTTPException(400, reading_problem(picture, error)) from error

    def _opened(self, picture: NamedBytes, function: Callable[[Any], Any]) -> Any:
        image = open_received(picture, self._classifier.preprocess.channels)
        result, is_large = function(image), math.prod(size_of(image)) > LARGE
        del image
        if is_large and sys.platform == "linux":  # glibc would keep the memory for this thread
            ctypes.CDLL(None).malloc_trim(0)
        return result

    async def _pictures(self, request: Request) -> list[NamedBytes]:
        """The pictures of a request, at least one, in memory. Raises HTTPException."""
        if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
            return [NamedBytes(await request.body(), "picture")]
        form = await request.form(max_files=self._limits.queue, max_fields=0)
        files: Any = [file for _, file in form.multi_items()]
        if not files:
            raise HTTPException(400, "the request has no picture")
        return [NamedBytes(await file.read(), file.filename) for file in files]


def _options(classifier: Classifier, asked: tuple[tuple[str, str], ...]) -> PredictOptions:
    """Options of the address. UserError as of PredictOptions, and for an unknown one."""
    known, numbers = ["top", *rows("answers")], {}
    for name, text in asked:
        if name not in known or name in numbers:
            reason = "is there twice" if name in numbers else "is no option"
            raise UserError(f"{name!r} {reason}{did_you_mean(name, known)}")
        try:
            numbers[name] = int(text) if name == "top" else float(text)
        except ValueError as error:
            raise UserError(f"{name}={shorten(text)!r} is not a number") from error
    return PredictOptions(top=numbers.pop("top", 5), numbers=numbers).of(classifier)


def _glance(classifier: Classifier) -> Any:
    """Name and function of a picture of what a model in PyTorch looks at; None if it has none."""
    if classifier.runtime is None:
        for row in rows("glances").values():
            with suppress(NotInstalled):
                return resolve(row)(classifier.model, classifier.preprocess, math.inf)
    return None


def _drawn(classifier: Classifier, draw: Any, image: Any) -> Any:
    logits, _ = classifier.outputs(classifier.preprocess(image)[None])
    return draw(image, int(logits.argmax()))


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """The result of `work`, which is cancelled if the client leaves."""
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        leaving.cancel()


async def _refused(_: Request, error: Any) -> Response:
    if error.detail.startswith("Too many files"):
        error = HTTPException(413, "more pictures than the queue has places")
    if error.detail.startswith("Too many fields"):
        error = HTTPException(400, "each part of a form is a file; options go into the address")
    return refused(error)


async def _failed(_: Request, error: Exception) -> Response:
    has_left = isinstance(error, ClientDisconnect)  # so that nobody reads the answer
    if not has_left:
        say(f"a request failed: {type(error).__name__}: {error}")
    return refused(HTTPException(499 if has_left else 500, str(error)))
