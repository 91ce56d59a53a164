"""`vit knn`: accuracy of weighted nearest neighbours among frozen features."""

import json

from vit.extensions.evaluation.cli_frozen import bench_parser, open_bench, usual

DESCRIPTION = """\
Classifies each test image by the votes of the training images with the most similar features,
weighted by exp(similarity / temperature). As DINOv2's kNN, in float64."""


def run(args: list[str]) -> int:
    """Prints one row per number of neighbours."""
    parser = bench_parser("knn", DESCRIPTION)
    add = parser.add_argument
    add("--k", type=int, nargs="+", metavar="N", help="neighbours (default: 10 20 100 200)")
    add("--temperature", type=float, metavar="X", help="temperature of the votes (default: 0.07)")
    options = parser.parse_args(args)

    from vit.extensions.evaluation.knn import (
        NEIGHBOURS,
        TEMPERATURE,
        check_neighbours,
        knn_accuracy,
    )

    temperature = TEMPERATURE if options.temperature is None else options.temperature
    bench = open_bench(options, "pooled")
    count = len(bench.data.image_set("train"))
    note = f"{count} training images, so there is no k of"
    ks = sorted(set(options.k or usual(NEIGHBOURS, count, note)))
    check_neighbours(ks, count, temperature)
    train, test = bench.features("train"), bench.features(bench.split)
    accuracies = knn_accuracy(
        (train.values, train.labels),
        (test.values, test.labels),
        bench.data.num_classes,
        ks=ks,
        temperature=temperature,
        device=bench.frozen.solver_device,
    )
    if options.json:
        about = {"model": options.model, **bench.about(len(train.labels), len(test.labels))}
        rows = [{"k": k, "accuracy": share} for k, share in accuracies.items()]
        print(json.dumps({**about, "temperature": temperature, "rows": rows}, indent=2))
        return 0
    print(f"{bench.split} accuracy on {bench.name} in %, {len(test.labels):,} images")
    print(f"{'k':>5} {'accuracy':>9}")
    for k, share in accuracies.items():
        print(f"{k:5} {100 * share:9.2f}")
    return 0
