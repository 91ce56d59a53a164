"""A few lines of Python that answer a photo with an exported file, without this package."""

from pathlib import Path

from jinja2 import StrictUndefined, Template

from vit.extensions.serving.engines import HINTS, Description

LIBRARIES = {"onnx": "onnxruntime", "openvino": "openvino"}


def page_of(file: Path, kind: str) -> Path:
    """The place of the page beside an .onnx or .xml file; the file itself for another kind."""
    return file.with_name(f"{file.stem}_{LIBRARIES[kind]}.py") if kind in LIBRARIES else file


def write_page(file: Path, kind: str, description: Description) -> None:
    """Writes the page of page.py.jinja beside an .onnx or .xml file, for a model of RGB images."""
    steps, place = description.preprocess, page_of(file, kind)
    if steps.channels is not None:
        return
    template = Template(
        Path(__file__).with_name("page.py.jinja").read_text(encoding="utf-8"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    (height, width), (resized_height, resized_width) = steps.image_size, steps.resized
    text = template.render(
        file=file.name,
        page=place.name,
        library=LIBRARIES[kind],
        resize=steps.resize,
        h=height,
        w=width,
        rh=resized_height,
        rw=resized_width,
        whole="int" if resized_height == resized_width else "round",
        filter=steps.interpolation.upper(),
        rounding="round" if steps.crop_rounding == "even" else "int",
        color=tuple(round(255 * value) for value in steps.mean),
        classes=description.classes is not None,
        hint=HINTS.get(description.precision, "f32"),
    )
    place.write_text(text, encoding="utf-8")
