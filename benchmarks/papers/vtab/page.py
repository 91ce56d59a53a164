"""The table of docs/vtab.md."""

from benchmarks.lib.pages import ROOT, filled, generate, load, plus_minus, table

PAGE = ROOT / "docs" / "vtab.md"


def main() -> int:
    content = load("papers/vtab/results")
    rows = [(f"`{row['data']}`", 100 * row["mean"], row) for row in content["rows"]]
    rows += [
        (f"{name}: {group['tasks']} of {group['of']} tasks", 100 * group["mean"], group)
        for name, group in content["vtab"].items()
    ]
    head = ("miniature", "test top-1 of 100 images, %", "n")
    shown = table(head, [(name, plus_minus(m, 100 * r["std"]), r["n"]) for name, m, r in rows])
    steps, seconds = content["rows"][0]["steps"], content["train_cpu_seconds"]
    text = (
        f"A ViT of two layers with random weights, {content['image_size']} pixels, {steps} steps\n"
        f"of {content['batch_size']} images; {seconds:,.0f} CPU seconds of training in all, on one "
        f"thread of\na shared {content['hardware']['cpu']}."
    )
    return generate(PAGE, filled(PAGE, machinery=f"{text}\n\n{shown}"))


if __name__ == "__main__":
    raise SystemExit(main())
