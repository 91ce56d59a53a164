"""The table of names and photos in docs/names.md."""

from typing import Any

from benchmarks.lib.pages import ROOT, filled, generate, load, table
from vit.extensions.adaptation.named_head import FEWEST

PAGE = ROOT / "docs" / "names.md"
TEXT = """\
Planted geometry (`benchmarks/papers/names`): {classes} classes in {width} dimensions, the means of
their photos at a known angle to their names, {draws} draws, {probes} of them for the probe.
Accuracy on other photos, %; standard errors are at most {error:.1f} points. In bold the head that
the recipe takes; with five photos and far names the fixed strength is about three points better. No
real CLIP takes part.
"""
HEADS = {
    "names": "names alone",
    "probe": "photos alone (`-c probe`)",
    "fixed": "both, strength 3",
    "chosen": "both, leave-one-out",
}


def main() -> int:
    content = load("papers/names/results")
    rows: list[dict[str, Any]] = content["rows"]
    error = 100 * max(max(row["error"].values()) for row in rows)
    lines = []
    for row in rows:
        taken = "fixed" if row["shots"] < FEWEST else "chosen"
        shown = {name: f"{100 * row['accuracy'][name]:.1f}" for name in HEADS}
        shown[taken] = f"**{shown[taken]}**"
        lines.append((f"{row['angle']}°", row["shots"], *shown.values()))
    head = ("angle", "photos of a class", *HEADS.values())
    text = f"{TEXT.format(**content, error=error)}\n{table(head, lines)}"
    return generate(PAGE, filled(PAGE, geometry=text))


if __name__ == "__main__":
    raise SystemExit(main())
