"""Fine-tuning by the defaults of timm and transformers, with the CPU time that `-c finetune` took.

    python benchmarks/finetune_peers.py --weights WEIGHTS --runs DIR --cell 20:0

`--runs` is the folder of benchmarks/few_images.py, whose run of the cell gives images, test images
and CPU seconds. Both peers start from the same weights in their own classes. Their schedules end
with that time, start-up not counted (transformers counts steps: three trial steps give how many).
- timm: its package has no train script, so this follows the defaults of train.py (timm 1.0): SGD
  with Nesterov momentum 0.9, learning rate 0.1 per 256 images, weight decay 2e-5, batch 128, cosine
  with a warm-up of 5 of 300 epochs (here the same share of the steps), create_transform with random
  crops from 8 %, flips, colour jitter 0.4; a new head with its own initialization.
- transformers: Trainer with the arguments of examples/pytorch/image-classification: AdamW, 5e-5,
  batch 8, linear decay, random crops and flips; Dinov2ForImageClassification.
Needs `pip install timm transformers accelerate`. Adds to benchmarks/results/finetune_peers.json.
"""

import argparse
import csv
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

RESULTS = HERE / "results" / "finetune_peers.json"
TRIAL_STEPS = 3
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def rows_of(manifest: Path, split: str, classes: list[str]) -> list[tuple[Path, int]]:
    """Path and label of the images of a split."""
    with manifest.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    return [(manifest.parent / row["path"], classes.index(row["label"])) for row in rows]


class Images(torch.utils.data.Dataset[dict[str, Any]]):
    """The images of a split, transformed when they are asked for."""

    def __init__(self, rows: list[tuple[Path, int]], transform: Callable[[Any], Any]) -> None:
        self.rows, self.transform = rows, transform

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.rows[index]
        with Image.open(path) as image:
            return {"pixel_values": self.transform(image.convert("RGB")), "labels": label}


def evaluation(pixels: int) -> Callable[[Any], Any]:
    """The whole image, resized, as `vit` scores it."""
    return transforms.Compose(
        [
            transforms.Resize((pixels, pixels), transforms.InterpolationMode.BICUBIC),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )


@torch.inference_mode()
def accuracy(logits_of: Callable[[Tensor], Tensor], data: Images) -> float:
    """Per cent of the images whose largest logit is their label."""
    right = 0
    for batch in torch.utils.data.DataLoader(data, batch_size=100):
        right += int((logits_of(batch["pixel_values"]).argmax(1) == batch["labels"]).sum())
    return 100 * right / len(data)


def endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def timm_defaults(weights: str, train: list[Any], test: Images, pixels: int, budget: float) -> Any:
    import timm
    from timm.data.transforms_factory import create_transform
    from timm.optim._optim_factory import create_optimizer_v2

    from vit.checkpoints.convert import convert

    with tempfile.TemporaryDirectory() as folder:
        convert(weights, Path(folder) / "timm", "timm")
        model = load_timm(timm, Path(folder) / "timm" / "model.safetensors", pixels)
    transform: Any = create_transform(pixels, is_training=True, color_jitter=0.4)
    batch = min(128, len(train))
    loader = torch.utils.data.DataLoader(
        Images(train, transform), batch_size=batch, shuffle=True, drop_last=True
    )
    rate = 0.1 * batch / 256
    optimizer = create_optimizer_v2(model, opt="sgd", lr=rate, weight_decay=2e-5, momentum=0.9)
    model.train()
    batches, steps, last = endless(loader), 0, 0.0
    began = start = time.process_time()
    while start + last - began < budget:
        used, warm = (start - began) / budget, 5 / 300
        factor = used / warm if used < warm else (1 + math.cos(math.pi * used)) / 2
        for group in optimizer.param_groups:
            group["lr"] = rate * max(factor, 1e-4)
        images = next(batches)
        loss = nn.functional.cross_entropy(model(images["pixel_values"]), images["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        last = time.process_time() - start
        start += last
    spent = time.process_time() - began
    return accuracy(model.eval(), test), steps, batch, spent


def load_timm(timm: Any, file: Path, pixels: int) -> Any:
    """timm's ViT-S/14 for these pixels with the file's weights and a new head."""
    from safetensors.torch import load_file
    from timm.models.vision_transformer import checkpoint_filter_fn

    model = timm.create_model("vit_small_patch14_dinov2", num_classes=10, img_size=pixels)
    state = checkpoint_filter_fn(load_file(file), model)
    missing = model.load_state_dict(
        {k: v for k, v in state.items() if not k.startswith("head")}, strict=False
    )
    assert set(missing.missing_keys) == {"head.weight", "head.bias"}, missing
    assert not missing.unexpected_keys, missing
    return model


def transformers_defaults(
    weights: str, train: list[Any], test: Images, pixels: int, budget: float
) -> Any:
    from transformers import Dinov2ForImageClassification, Trainer, TrainingArguments

    model: Any = Dinov2ForImageClassification.from_pretrained(weights, num_labels=10)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(pixels),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    data = Images(train, transform)
    batch = torch.utils.data.default_collate([data[i] for i in range(8)])
    seconds = []
    for _ in range(TRIAL_STEPS):
        start = time.process_time()
        model(**batch).loss.backward()
        seconds.append(time.process_time() - start)
    model.zero_grad()
    # The optimizer's step takes a quarter of that again at a batch of 8.
    steps = max(1, int(budget / (1.25 * sorted(seconds)[TRIAL_STEPS // 2])))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=steps,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=data)
        began = time.process_time()
        trainer.train()
        spent = time.process_time() - began
    model.eval()
    return accuracy(lambda x: model(pixel_values=x).logits, test), steps, 8, spent


PEERS = {"timm": timm_defaults, "transformers": transformers_defaults}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--cell", default="20:0", metavar="N:SEED")
    parser.add_argument("--pixels", type=int, default=56)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    options = parser.parse_args()
    name = options.cell.replace(":", "_")
    manifest = options.runs / f"images_{name}.csv"
    ours = json.loads((options.runs / f"finetune_{name}" / "summary.json").read_text())
    classes, budget = ours["classes"], ours["train_cpu_seconds"]
    train = rows_of(manifest, "train", classes)
    test = Images(rows_of(manifest, "test", classes), evaluation(options.pixels))
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else []
    for peer in options.peers:
        torch.manual_seed(0)
        percent, steps, batch, spent = PEERS[peer](
            options.weights, train, test, options.pixels, budget
        )
        row = {
            "cell": options.cell,
            "peer": peer,
            "version": sys.modules[peer].__version__,
            "accuracy": round(percent, 2),
            "steps": steps,
            "batch": batch,
            "train_cpu_seconds": round(spent, 1),
            "budget": budget,
        }
        rows = [r for r in rows if (r["cell"], r["peer"]) != (options.cell, peer)] + [row]
        RESULTS.write_text(json.dumps(rows, indent=2) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    main()
