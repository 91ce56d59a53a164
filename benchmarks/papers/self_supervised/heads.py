"""Fresh heads on a frozen encoder: at which temperatures and rates do answers tell images apart?

    python -m benchmarks.papers.self_supervised.heads --data cifar10/ --weights W

`--data` has train/ with one folder per class, `--weights` are a DINOv2 ViT. Class tokens of 2,048
images, two global crops of 56 pixels and four local ones of 28, are computed once. Heads of 4,096
prototypes learn from them by the loss of class tokens for 250 steps of 64 images, as in the first
part of recipe pretrain/dinov2_continue, for each setting from the same start. Measured: the mutual
information of the teacher's answers with 512 of the images, at 0.02, so that settings compare, and
the loss; heads whose answers are the same for all images have no information and a loss of
ln(prototypes).
"""

import math
import sys
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lib.harness import Rows, arguments, document, publish
from vit.console import Meter
from vit.data.settings import Loading
from vit.extensions.recipes.ema import follow
from vit.extensions.recipes.multi_crop import GLOBAL_CROPS, Crops
from vit.extensions.ssl.crops import DinoData
from vit.extensions.ssl.heads import PrototypeHead
from vit.extensions.ssl.losses import Centre, class_token_loss, sinkhorn
from vit.extensions.ssl.settings import Teacher
from vit.weights.pretrained import load_pretrained

SIZES = {"batches": 32, "batch": 64, "steps": 250, "prototypes": 4_096, "hidden": 2_048}
QUICK = {"batches": 2, "batch": 4, "steps": 2, "prototypes": 16, "hidden": 16}
CENTRINGS, RATES = ("centre", "sinkhorn"), (1e-4, 5e-4)
TEMPERATURES = ((0.02, 0.02), (0.04, 0.04), (0.04, 0.07))
"""Of the teacher at the start, and after 0.3 of the run; the last ones are the official code's."""
SHARP, JUDGED = 0.02, 8
"""Temperature of the measured answers, and batches of their images."""


def class_tokens(data: Path, weights: Path, sizes: dict[str, int]) -> Tensor:
    """Class tokens of the crops, `batches crops b d`."""
    network: Any = load_pretrained(str(weights))[0].eval()
    source: Any = DinoData(
        root=str(data / "train"),
        image_size=56,
        batch_size=sizes["batch"],
        crops=Crops(local=4, local_size=28),
        loading=Loading(num_workers=0),
    ).read_as(labelled=False)

    def tokens(images: Tensor) -> Tensor:
        return network.fc_norm(network.encode(*network.embed(images)))[:, 0]

    parts = []
    with Meter("class tokens", sizes["batches"], "batches") as meter, torch.no_grad():
        for batch, _ in zip(source.train_dataloader(), range(sizes["batches"]), strict=False):
            first, _, _, second, small, _ = source.on_after_batch_transfer(batch, 0)
            local = tokens(small.flatten(0, 1)).unflatten(0, (len(first), -1)).transpose(0, 1)
            parts.append(torch.cat([torch.stack([tokens(first), tokens(second)]), local]))
            meter.advance()
    return torch.stack(parts)


def information(answers: Tensor) -> float:
    """Mutual information of answers `n k` with their images, in nats."""
    entropies = torch.special.entr(answers).sum(1)
    return float(torch.special.entr(answers.mean(0)).sum() - entropies.mean())


def learned(
    tokens: Tensor, sizes: dict[str, int], rate: float, teaching: Teacher
) -> dict[str, float]:
    """Loss and information of heads that learn from class tokens by a setting."""
    torch.manual_seed(0)
    prototypes, hidden, steps = (sizes[name] for name in ("prototypes", "hidden", "steps"))
    student = PrototypeHead(tokens.shape[-1], prototypes, hidden=hidden)
    teacher, centre = deepcopy(student), Centre(prototypes)
    optimizer = torch.optim.AdamW(student.parameters(), lr=rate, weight_decay=0.04, fused=True)

    @torch.no_grad()
    def answers(crops: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits = teacher(crops.flatten(0, -2))
        if teaching.centring == "sinkhorn":
            return sinkhorn(logits, temperature), logits
        return centre.probabilities(logits, temperature), logits

    def judged() -> float:
        return information(answers(tokens[:JUDGED, 0], SHARP)[0])

    before, losses = judged(), []
    for step in range(steps):
        crops = tokens[step % len(tokens)]
        wanted, logits = answers(crops[:GLOBAL_CROPS], teaching.temperature_at(step, steps))
        centre.add(logits)
        centre.move()
        outputs = student(crops.flatten(0, 1)).unflatten(0, crops.shape[:2])
        goals = wanted.unflatten(0, (GLOBAL_CROPS, -1))
        loss = class_token_loss(outputs, goals, teaching.student_temperature)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(student.parameters(), 3.0)
        optimizer.step()
        momentum = teaching.momentum_at(step, steps)
        follow([*teacher.parameters()], [*student.parameters()], momentum)
        losses.append(float(loss.detach()))
    last = losses[-len(tokens) :]
    return {"before": before, "after": judged(), "loss": sum(last) / len(last)}


def main(words: list[str] | None = None) -> dict[str, Any]:
    parser = arguments(__doc__, "data")
    parser.add_argument("--weights", type=Path, required=True, help="of a DINOv2 ViT")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    sizes: dict[str, int] = QUICK if options.quick else SIZES
    rows: Rows = []
    tokens = class_tokens(options.data.resolve(), options.weights, sizes)
    for centring, (first, last), rate in product(CENTRINGS, TEMPERATURES, RATES):
        row = {"centring": centring, "first_temperature": first, "temperature": last}
        teaching = Teacher(momentum=0.99, **row)
        rows.append({**row, "rate": rate, **learned(tokens, sizes, rate, teaching)})
        print(rows[-1], file=sys.stderr, flush=True)
    uniform = math.log(sizes["prototypes"])
    content = document("heads", rows, settings=sizes, uniform_loss=uniform)
    publish(content, options, "papers/self_supervised/heads")
    return content


if __name__ == "__main__":
    main()
