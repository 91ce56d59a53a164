"""A few lines of Python that answer a photo with an exported file, without this package."""

from pathlib import Path

from vit.extensions.serving.engines import Description

PAGE = """\
# Names a photo with {file}, by numpy, pillow and {library} alone: python {page} PHOTO
import json
import sys
from pathlib import Path

import numpy as np
import {library}
from PIL import Image, ImageOps

file = Path(__file__).with_name("{file}")
{run}
image = ImageOps.exif_transpose(Image.open(sys.argv[1]))
assert image.mode[0] not in "IF", "16 and 32 bits: `vit classify` reads them"
if image.has_transparency_data:  # on white
    image = image.convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
image = image.convert("RGB")
{cut}
outputs = run(np.asarray(image)[None])
"""
RUN = {
    "onnx": """\
session = onnxruntime.InferenceSession(file)
about = json.loads(session.get_modelmeta().custom_metadata_map["vit"])
run = lambda x: dict(zip(about["outputs"], session.run(about["outputs"], {"images": x})))""",
    "openvino": """\
model = openvino.Core().read_model(file)
about = json.loads(model.get_rt_info(["vit"]).value)
model.reshape([1, *model.input().partial_shape[1:]])
run = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})""",
}
CROP = """\
height, width = image.height, image.width
tall = width * {rh} <= height * {rw}
size = ({rw}, {whole}({rw} * height / width)) if tall else ({whole}({rh} * width / height), {rh})
image = image.resize(size, Image.Resampling.{filter})
left, top = {rounding}((image.width - {w}) / 2), {rounding}((image.height - {h}) / 2)
image = image.crop((left, top, left + {w}, top + {h}))"""
SQUASH = """\
image = image.resize(({rw}, {rh}), Image.Resampling.{filter})
left, top = {rounding}(({rw} - {w}) / 2), {rounding}(({rh} - {h}) / 2)
image = image.crop((left, top, left + {w}, top + {h}))"""
PAD = """\
ratio = max(image.height / {h}, image.width / {w})
size = max(round(image.width / ratio), 1), max(round(image.height / ratio), 1)
image = image.resize(size, Image.Resampling.{filter})
image, photo = Image.new("RGB", ({w}, {h}), {color}), image
image.paste(photo, (({w} - size[0]) // 2, ({h} - size[1]) // 2))"""
TOP = """\
for k in outputs["probabilities"][0].argsort()[::-1][:5]:
    print(f"{outputs['probabilities'][0, k]:6.1%}  {about['classes'][k]}")
if about["multilabel"]:
    print("labels:", *(c for c, yes in zip(about["classes"], outputs["labels"][0]) if yes))
"""
FEATURES = """\
print(*outputs["features"][0])
"""


LIBRARIES = {"onnx": "onnxruntime", "openvino": "openvino"}


def page_of(file: Path, kind: str) -> Path:
    """The place of the page beside an .onnx or .xml file; the file itself for another kind."""
    return file.with_name(f"{file.stem}_{LIBRARIES[kind]}.py") if kind in LIBRARIES else file


def write_page(file: Path, kind: str, description: Description) -> None:
    """Writes the page beside an .onnx or .xml file, for a model of RGB images."""
    preprocess = description.preprocess
    if preprocess.channels is not None:
        return
    (height, width), (resized_height, resized_width) = preprocess.image_size, preprocess.resized
    cut = {"crop": CROP, "squash": SQUASH, "pad": PAD}[preprocess.resize].format(
        h=height,
        w=width,
        rh=resized_height,
        rw=resized_width,
        whole="int" if resized_height == resized_width else "round",
        filter=preprocess.interpolation.upper(),
        rounding="round" if preprocess.crop_rounding == "even" else "int",
        color=tuple(round(255 * value) for value in preprocess.mean),
    )
    library, place = LIBRARIES[kind], page_of(file, kind)
    text = PAGE.format(file=file.name, page=place.name, library=library, run=RUN[kind], cut=cut)
    text += FEATURES if description.classes is None else TOP
    place.write_text(text, encoding="utf-8")
