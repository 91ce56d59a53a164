"""What a masked autoencoder saves by leaving masked patches out of its encoder (Table 1c there).

    python -m benchmarks.papers.pretraining.cost

A training step of `task: mae` at the published sizes, with mask tokens in the encoder and without,
in turns: its counted operations and its time, in cost.json.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.lib.harness import arguments, document, publish, ratio, take_turns
from vit.extensions.compute.flops import counting
from vit.extensions.pretraining.masked_autoencoder import MaskedAutoencoder

MODELS = ("vit_b16", "vit_l16", "vit_h14")
TINY = {"width": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}


def model_of(name: str, mask_in_encoder: bool, quick: bool) -> MaskedAutoencoder:
    decoder: dict[str, Any] = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
    torch.manual_seed(0)
    return MaskedAutoencoder(
        name,
        mask_in_encoder=mask_in_encoder,
        architecture={"activation": "gelu", **(TINY if quick else {})},
        **(decoder if quick else {}),
    )


def step(model: MaskedAutoencoder, images: Tensor) -> None:
    """Both passes of a training step."""
    model.zero_grad()
    model.training_loss((images,)).backward()


def operations(name: str, mask_in_encoder: bool, quick: bool) -> int:
    """Of both passes for an image."""
    model = model_of(name, mask_in_encoder, quick).to("meta")
    with counting() as counter:
        step(model, torch.empty(1, 3, 224, 224, device="meta"))
    return counter.get_total_flops()


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--batch", type=int, default=2, help="default 2")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    rows = []
    for name in MODELS[:1] if options.quick else MODELS:
        images = torch.randn(options.batch, 3, 224, 224, device=options.device)
        calls: dict[bool, Callable[[], object]] = {}
        encoder = None
        for inside in (True, False):
            model = model_of(name, inside, options.quick).train().to(options.device)
            encoder = model.model = encoder or model.model  # one for both, as memory is short
            calls[inside] = partial(step, model, images)
        times = take_turns(name, calls, options.rounds, options.device, shortest=0)
        counts = {inside: operations(name, inside, options.quick) for inside in calls}
        rows.append(
            {
                "model": name,
                "operations": counts[False],
                "operations_ratio": round(counts[True] / counts[False], 3),
                "seconds": times[False].median,
                **ratio(times[False].ratios(times[True])),
            }
        )
    content = document("mae_cost", rows, settings={"batch": options.batch, "dtype": "float32"})
    publish(content, options, "papers/pretraining/cost" if options.device == "cpu" else None)
    return content


if __name__ == "__main__":
    main()
