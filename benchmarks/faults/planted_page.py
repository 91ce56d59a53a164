"""The tables of docs/data_check.md."""

from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, over, table

PAGE = ROOT / "docs" / "data_check.md"
TEXT = """\
CIFAR-10 (JPEG), 5,000 images at {pixels} pixels, features of a ViT-S/14 (DINOv2, tuned for
saliency); {n} draws of images and faults, ± is the standard deviation over them. Each has 200
copies in train, half of them of test images, and 300 wrong labels. Seconds are those of a
processor, on one thread of a shared {cpu}, without the features, which are in the cache.
"""
OTHERS = """
Others: CIFAR-10 has copies of its own. Of the 16 that the check with the model names in the first
draw, 15 are such copies to the eye, and one is another ship.
"""
COPIES = {
    "hash": "a perceptual hash alone",
    "files": "`vit data check`",
    "model": "`vit data check --model`",
}
LABELS = {
    "doubts_0.0": "`vit data check --model`",
    "doubts_0.5": "of these, certainty from 0.5",
    "doubts_0.9": "of these, certainty from 0.9",
    "cleanlab": "cleanlab {cleanlab}, scikit-learn's logistic regression",
}
Rows = list[dict[str, Any]]


def copies(rows: Rows, arm: str) -> list[str]:
    """Shares found by kind, others, and CPU seconds."""
    kinds = rows[0][arm]["found"]
    found = [over([100 * row[arm]["found"][kind] for row in rows], ".0f") for kind in kinds]
    others = over([row[arm]["others"] for row in rows], ".0f")
    timed = "cpu_seconds" in rows[0][arm]
    return [*found, others, over([r[arm]["cpu_seconds"] for r in rows], ".0f") if timed else ""]


def labels(rows: Rows, arm: str) -> list[str]:
    """Labels named, share found, share false, and that among the first 300."""
    shares = ("found", "false", "false_of_first")
    named = over([row[arm]["named"] for row in rows], ".0f")
    return [named, *(over([100 * row[arm][name] for row in rows], ".0f") for name in shares)]


def text() -> str:
    """Everything between the markers."""
    content = load("results/planted")
    rows, cpu = content["rows"], content["hardware"]["cpu"]
    kinds = [f"{kind}, % found" for kind in rows[0]["hash"]["found"]]
    head = ["copies by", *kinds, "others named", "CPU s"]
    others = ["wrong labels by", "named", "found, %", "false, %", "false of the first 300, %"]
    versions = content["packages"]
    return "\n".join(
        [
            TEXT.format(pixels=content["pixels"], n=len(rows), cpu=cpu),
            table(head, ([name, *copies(rows, arm)] for arm, name in COPIES.items())),
            OTHERS,
            table(
                others,
                ([name.format(**versions), *labels(rows, arm)] for arm, name in LABELS.items()),
            ),
        ]
    )


if __name__ == "__main__":
    raise SystemExit(generate(PAGE, filled(PAGE, results=text())))
