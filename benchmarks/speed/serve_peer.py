"""A model behind a function of Starlette, written by hand: what `vit serve` is held against.

python -m benchmarks.speed.serve_peer MODEL PORT
"""

import io
import sys
from typing import Any

import torch
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torchvision.transforms import v2

import vit


def application(folder: str) -> Starlette:
    """POST /classify for a picture; the model is in a model directory."""
    classifier = vit.load(folder)
    model, steps, classes = classifier.model, classifier.preprocess, classifier.classes
    transforms: Any = v2.Compose(
        [
            v2.Resize(min(steps.resized), v2.InterpolationMode.BICUBIC),
            v2.CenterCrop(steps.image_size),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(steps.mean, steps.std),
        ]
    )

    async def classify(request: Request) -> JSONResponse:
        image = Image.open(io.BytesIO(await request.body())).convert("RGB")
        with torch.inference_mode():
            probabilities = model(transforms(image)[None]).softmax(-1)[0]
        top = zip(*(each.tolist() for each in probabilities.topk(5)), strict=True)
        rows = [{"class": classes[index], "probability": value} for value, index in top]
        return JSONResponse([{"image": "picture", "top": rows}])

    return Starlette(routes=[Route("/classify", classify, methods=["POST"])])


if __name__ == "__main__":
    uvicorn.run(application(sys.argv[1]), port=int(sys.argv[2]), log_level="error")
