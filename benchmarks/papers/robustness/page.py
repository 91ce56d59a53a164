"""The table of docs/robustness.md."""

from benchmarks.lib.pages import ROOT, filled, generate, load, table

PAGE = ROOT / "docs" / "robustness.md"


def main() -> int:
    content = load("papers/robustness/results")
    rows, training = content["rows"], content["training"]
    head = ["kind", *(f"strength {strength}" for strength in rows[0]["errors"]), "mean"]
    shown = [
        (
            row["kind"].replace("_", " "),
            *(f"{100 * error:.1f}" for error in row["errors"].values()),
            f"{100 * row['mean_error']:.1f}",
        )
        for row in rows
    ]
    text = (
        f"{training['steps']} steps of the recipe `{training['recipe']}` on {content['data']}, "
        f"{content['images']} of its test images, numbers\nfor {content['numbers_for']} pixels, "
        f"seed {content['seed']}; training took {training['train_cpu_seconds']:,.0f} CPU seconds "
        f"and the {75 * content['images']:,} pictures {content['cpu_seconds']:,.0f},\non a shared "
        f"{content['hardware']['cpu']}. One model and one seed: an example of the output, and no "
        "comparison.\n\n"
        f"Top-1 error in %: {100 * content['clean_error']:.1f} without corruption, "
        f"{100 * content['mean_error']:.1f} on average with it. One error in {content['images']} "
        f"is {100 / content['images']:.1f}."
    )
    return generate(PAGE, filled(PAGE, results=f"{text}\n\n{table(head, shown)}"))


if __name__ == "__main__":
    raise SystemExit(main())
