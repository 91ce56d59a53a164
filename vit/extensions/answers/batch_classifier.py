"""Answers inside the engine of somebody else: files' bytes in, a table of Arrow out."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from vit.data.decode import NamedBytes
from vit.errors import UserError, needed
from vit.extensions.answers.answer_files import columns, table_of
from vit.extensions.answers.answers import answered, opened_batch
from vit.inference.answers import PredictOptions
from vit.inference.classifier import load
from vit.inference.runtimes import Precision

if TYPE_CHECKING:
    import pyarrow


class BatchClassifier:
    """The answers of `vit classify --out` for batches of files, as an engine calls it.

    Loads the model once for each object, so that an actor of Ray Data's `map_batches` does:

        files = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)
        rows = files.map_batches(vit.BatchClassifier, fn_constructor_args=["MODEL"], concurrency=4)
        rows.write_parquet("answers")

    Args:
        model: What `vit.load` takes.
        top: Classes of each picture.
        features: Add the head's input.
        engine: As of `vit.load`.
        precision: As of `vit.load`.
        device: As of `vit.load`.
        numbers: Options of the table `answers`, such as `coverage=0.9`.

    Raises UserError as `vit.load` and `PredictOptions` do.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        top: int = 5,
        features: bool = False,
        engine: str = "torch",
        precision: Precision = "float32",
        device: str | None = None,
        **numbers: float | None,
    ) -> None:
        needed("pyarrow", "parquet")
        self._model = load(model, engine=engine, precision=precision, device=device)
        self._asked = PredictOptions(top=top, numbers=numbers).of(self._model)
        self._features = features
        image, *others = columns(self._model, self._asked, features=features)
        self._columns = [image, "digest", *others]

    def __call__(self, batch: Mapping[str, Iterable[object]]) -> "pyarrow.Table":
        """A row for each file, in their order.

        `batch` has the columns `path` and `bytes`, of NumPy or plain lists. The rows have those of
        `vit classify --out`, and `digest`, the SHA-256 of the bytes. A file that is no picture has
        its reason in `error`. UserError for other columns, or cells of another type.
        """
        if lacking := {"path", "bytes"} - {*batch}:
            raise UserError(
                f"a batch has the columns {sorted(batch)}, and not {sorted(lacking)}; rename them"
            )
        pairs = zip(batch["bytes"], batch["path"], strict=True)
        files = [NamedBytes(_content(content), str(path)) for content, path in pairs]
        cut = opened_batch(self._model.preprocess, files)
        rows = answered(self._model, self._asked, self._features, cut)
        for row, file in zip(rows, files, strict=True):
            row["digest"] = sha256(file).hexdigest()
        return table_of(rows, self._columns)


def _content(content: object) -> bytes:
    """The bytes of a cell; None is a file without bytes. UserError for a cell of another type."""
    if content is not None and not isinstance(content, bytes | bytearray | memoryview):
        kind = type(content).__name__
        raise UserError(f"a cell of the column bytes is {kind}, and not the bytes of a file")
    return bytes(content or b"")
