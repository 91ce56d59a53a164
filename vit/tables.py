"""Tables of the parts that extensions add: a row is "module:object", which is imported on use.

An installed package adds rows by entry points of GROUP, named TABLE.NAME (docs/architecture.md).
"""

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract, isclass
from typing import Any, TypeVar

from vit.errors import UserError

GROUP = "vit.extensions"
Kind = TypeVar("Kind")

TABLES: dict[str, dict[str, str]] = {
    # Word after `vit` -> function of the other words, which returns the exit status.
    "commands": {
        "fit": "vit.cli.fit:run",
        "validate": "vit.cli.evaluate:validate",
        "test": "vit.cli.evaluate:test",
        "predict": "vit.cli.evaluate:predict",
        "transfer": "vit.extensions.transfer.cli_transfer:run",
        "folds": "vit.extensions.folds.cli_folds:run",
        "selftrain": "vit.extensions.transfer.cli_selftrain:run",
        "tune": "vit.extensions.tune.cli_tune:run",
        "fewshot": "vit.extensions.evaluation.cli_fewshot:run",
        "knn": "vit.extensions.evaluation.cli_knn:run",
        "probe": "vit.extensions.evaluation.cli_probe:run",
        "imagenet": "vit.extensions.evaluation.cli_imagenet:run",
        "robustness": "vit.extensions.evaluation.cli_robustness:run",
        "classify": "vit.cli.classify:run",
        "trust": "vit.extensions.trust.cli_trust:run",
        "report": "vit.extensions.reports.cli_report:run",
        "inspect": "vit.extensions.inspection.cli_inspect:run",
        "data": "vit.extensions.datacheck.cli_data:run",
        "runs": "vit.extensions.reports.cli_runs:run",
        "recipes": "vit.extensions.recipes.cli_recipes:run",
        "models": "vit.extensions.compute.cli_models:run",
        "compare": "vit.extensions.compute.cli_compare:run",
        "bench": "vit.extensions.compute.cli_bench:run",
        "serve": "vit.extensions.serve.cli_serve:run",
        "export": "vit.extensions.serving.cli_export:run",
        "download": "vit.extensions.formats.cli_download:run",
        "convert": "vit.extensions.formats.cli_convert:run",
        "doctor": "vit.extensions.doctor.cli_doctor:run",
        "average": "vit.extensions.averaging.cli_average:run",
        "completion": "vit.extensions.words.cli_completion:run",
    },
    # Asked about a command, name or call of Python with a mistake -> vit.synonyms.Synonyms.
    "synonyms": {
        "words": "vit.extensions.words.command_lines:in_our_words",
        "names": "vit.extensions.words.python_names:in_our_words",
    },
    # Word of --task -> vit.training.network_training.NetworkTraining.
    "tasks": {
        "classification": "vit.training.image_classifier:ImageClassifier",
        "masked_patches": "vit.extensions.pretraining.masked_patches:MaskedPatchPrediction",
        "mae": "vit.extensions.pretraining.masked_autoencoder:MaskedAutoencoder",
        "autoregressive": "vit.extensions.pretraining.autoregressive:Autoregressive",
        "dino": "vit.extensions.ssl.dino:Dino",
    },
    # Field of vit.facts.Facts, if it is set -> vit.training.metrics.EvaluationMetrics.
    "scores": {"multilabel": "vit.extensions.multilabel.scores:MultilabelMetrics"},
    # Field of vit.training.losses.Loss, if it is set -> a Loss, made of the fields.
    "losses": {"function": "vit.extensions.recipes.own_loss:OwnLoss"},
    # Field of vit.training.mixing.Mixing above 0 -> vit.training.mixing.Mixer.
    "mixers": {"cutmix": "vit.extensions.recipes.cutmix:cut_boxes"},
    # Fits a head beside its rows for classes that weights know -> KnownRows of linear_probe.
    "heads": {"known_classes": "vit.extensions.adaptation.known_classes:fit_beside"},
    # Words, one of which is in a root or in the name of a file there -> vit.data.roots.Source.
    "sources": {
        "train800val200.txt": "vit.extensions.transfer.vtab_source:VtabTask",
        ".tar .parquet * ://": "vit.extensions.sources.kinds:Shards",
        ".csv .tsv .parquet .pq": "vit.extensions.sources.kinds:Lists",
        "tuple": "vit.extensions.sources.kinds:Objects",
    },
    # Field of vit.data.transforms.TrainTransform -> its Change, in the order in which they act.
    "changes": {
        "three_augment": "vit.extensions.recipes.changes:ThreeAugment",
        "policy": "vit.extensions.recipes.changes:OfPolicy",
        "color_jitter": "vit.extensions.recipes.changes:ColorJitter",
        "extra": "vit.extensions.recipes.extra:OwnChange",
        "erasing": "vit.extensions.recipes.changes:Erasing",
    },
    # Word of data.shuffle -> vit.data.sampler.Order.
    "orders": {"blocks": "vit.extensions.sources.blocks:Blocks"},
    # f(first bytes of a file that is no JPEG or PNG, name): adds a plugin of Pillow, or ImageError.
    "photos": {"phones": "vit.extensions.openers.phone_photos:add_plugin"},
    # The last one opens images that are not RGB -> vit.data.decode.Opener.
    "openers": {"raster": "vit.extensions.openers.raster:Raster"},
    # Asked in this order, as our names of tensors are also timm's -> vit.weights.formats.Format.
    "formats": {
        "native": "vit.weights.native:Native",
        "timm": "vit.extensions.formats.timm:Timm",
        "torchvision": "vit.extensions.formats.torchvision:Torchvision",
        "huggingface": "vit.extensions.huggingface.huggingface:HuggingFace",
        "google": "vit.extensions.formats.google:Google",
        "open_clip": "vit.extensions.towers.open_clip:OpenClip",
    },
    # Asked for a file that this package has not saved -> vit.weights.weight_file.WeightReader.
    "weight_files": {"foreign": "vit.extensions.formats.files:open_file"},
    # Checkpoint that is a folder -> vit.weights.archives.FolderReader.
    "folders": {"sharded": "vit.extensions.scale.sharded:read_folder"},
    # Field of a ViTConfig -> vit.models.zoo.Builder of the models where it is set.
    "builders": {
        "variant": "vit.extensions.variants.transformer:build",
        "tower": "vit.extensions.towers.tower:build",
        "rotary": "vit.extensions.formats.rotary:build",
        "cosine": "vit.extensions.text.cosine:build",
    },
    # Words that mean weights, and the classes of their heads -> vit.weights.names.Names.
    "names": {
        "published": "vit.extensions.formats.published:PublishedNames",
        "addresses": "vit.extensions.formats.hub:Addresses",
        "imagenet": "vit.extensions.formats.class_names:ImageNet",
    },
    # Page beside weights -> f(WeightFile, NamedWeights or None, recorded licences), inherited.
    "inherited": {"README.md": "vit.extensions.licences.rows:inherited"},
    # Suffix of another runtime's model; word of --engine -> vit.inference.runtimes.Opener; Runtime.
    "engines": dict.fromkeys(
        (".onnx", ".xml", ".pt2"), "vit.extensions.serving.engines:open_classifier"
    ),
    "runtimes": {"openvino": "vit.extensions.serving.engines:classifier_in_openvino"},
    # Option of `vit test` with a file -> vit.runs.evaluate.Subject that is made of it.
    "subjects": {"with": "vit.extensions.serving.exported_subject:ExportedSubject"},
    # Option of a number -> vit.inference.answers.Answer.
    "answers": {
        "coverage": "vit.extensions.trust.trust_answers:Coverage",
        "unknown": "vit.extensions.trust.trust_answers:Unknown",
        "confidence": "vit.extensions.trust.trust_answers:Confidence",
    },
    # Texts of vit.load that make the head -> f(weights, **options), in place of load_pretrained.
    "texts": dict.fromkeys(("names", "templates"), "vit.extensions.text.zero_shot:load_named"),
    # Flag of `vit classify` -> f(Classifier, PredictOptions) -> Classifier.
    "views": {"tta": "vit.extensions.trust.mirrored:mirrored"},
    # Suffix of --out of `vit classify` -> vit.cli.classify.AnswerFile.
    "answer_files": dict.fromkeys(
        (".csv", ".jsonl", ".parquet"), "vit.extensions.answers.cli_answer_out:AnswerFile"
    ),
    # Parts of what `vit test` prints: vit.cli.evaluate.Comparison and, of several labels, Detail.
    "comparisons": {"paired": "vit.extensions.evaluation.cli_paired:compare_two"},
    "details": {"per_class": "vit.extensions.reports.scores:per_class"},
    # Made of a finished run, in this order, by its first process -> vit.runs.finishers.Finisher.
    "finishers": {
        "report": "vit.extensions.reports.finisher:finish",
        "examples": "vit.extensions.pretraining.finisher:finish",
    },
    # What a report shows beside an error -> vit.extensions.reports.results.Glance.
    "glances": {"attention": "vit.extensions.inspection.looks:glances"},
    # OPTION=WORD -> Lightning's Strategy, made without arguments; vit.runs.trainer.BatchByWord.
    "values": {
        "trainer.strategy=fsdp2": "vit.extensions.scale.sharding:ShardedStrategy",
        "data.batch_size=auto": "vit.extensions.scale.batch_trial:batch_by_trial",
    },
    # Option of an argument of a class -> "option:class.argument", then limits that it replaces.
    "short_names": {
        "budget": "model.schedule.length:vit.Budget.time trainer.max_epochs trainer.max_steps",
        "model.lora": "model.adaptation:vit.LoRA.rank",
        "teacher": "model.loss.teacher:vit.Distillation.weights",
        "teacher_cache": "model.loss.teacher:vit.Distillation.cache",
    },
}
"""Table -> name -> row."""

HELP = {
    "commands": {
        "fit": "train or fine-tune a model by a recipe",
        "validate": "evaluate a run on its validation images",
        "test": "evaluate a run on its test images",
        "predict": "write predictions for a split to CSV",
        "transfer": "fine-tune on several data sets as the paper does",
        "folds": "cross-validate, then train on all images",
        "selftrain": "train on unlabelled images with labels from a teacher",
        "tune": "choose options for a data set within a time",
        "fewshot": "evaluate frozen features with a few images per class",
        "knn": "evaluate frozen features by nearest neighbours",
        "probe": "evaluate frozen features by logistic regression",
        "imagenet": "evaluate a model on ImageNet val, ReaL, V2, A and R",
        "robustness": "evaluate a model on corrupted pictures",
        "classify": "classify images with a trained model",
        "trust": "choose the score by which a run detects unknown images",
        "report": "rebuild the report of a finished run",
        "inspect": "draw attention, rollout, Grad-CAM and filters of a model",
        "data": "check a data set for bad files, copies and leaks; pack shards",
        "runs": "list runs with their scores",
        "recipes": "list the shipped recipes",
        "models": "list architectures and published weights",
        "compare": "compare operations, memory and training cost of models",
        "bench": "measure images per second, and the share of this machine's peak",
        "serve": "answer in a browser and over HTTP with a trained model",
        "export": "write a model for ONNX Runtime, OpenVINO or torch.export",
        "download": "download published weights",
        "convert": "convert weights between formats, or compare two files",
        "doctor": "check this installation; prints text for a bug report",
        "average": "write a model with the mean of the weights of several runs",
        "completion": "print the script by which bash, zsh or fish completes commands",
    },
    "subjects": {"with": "a file of `vit export` to evaluate in place of the run's weights"},
    "texts": {
        "names": "classes by their names, for CLIP and SigLIP: 'cat,dog,a red car'",
        "templates": "sentences for --names: 'a photo of a {}', or imagenet for the published 80",
    },
    "views": {"tta": "average the probabilities of a picture and of its mirror image"},
    "answers": {
        "coverage": "add a set that holds the true class with probability P, such as 0.9",
        "unknown": "report 'none of these' for images unlike a share P of val, such as 0.95",
        "confidence": "in a tree of classes, answer with the deepest node of probability above P",
    },
}
"""Table -> name -> its line in the help."""


def rows(table: str) -> dict[str, str]:
    """Name -> "module:object", installed packages last. UserError for a duplicate name."""
    named = dict(TABLES[table])
    for name, entry in installed(table):
        if name in named:
            raise UserError(f"{entry.value} adds {name!r} to {table}, which have it; uninstall one")
        named[name] = entry.value
    return named


def lines(table: str) -> dict[str, str]:
    """Name -> its line in the help; for an installed package, the package's summary."""
    texts = {name: HELP[table].get(name, "") for name in rows(table)}
    packages = {name: entry.dist for name, entry in installed(table) if entry.dist is not None}
    return texts | {n: str(p.metadata.json.get("summary", "")) for n, p in packages.items()}


@cache
def installed(table: str) -> list[tuple[str, EntryPoint]]:
    """Names and entry points of installed packages. UserError for an unknown table."""
    entries = sorted(entry_points(group=GROUP))
    for e in entries:
        if e.name.partition(".")[0] not in TABLES:
            raise UserError(f"{e.value} of a package: {e.name!r} is in none of {[*TABLES]}")
    return [(e.name[len(table) + 1 :], e) for e in entries if e.name.startswith(f"{table}.")]


class NotInstalled(UserError):
    """The module of a row is missing."""


def made(row: str, kind: type[Kind]) -> Kind:
    """An instance of the class of a row. UserError unless it is a `kind` with all methods."""
    entry = resolve(row)
    if isclass(entry) and issubclass(entry, kind) and not isabstract(entry):
        return entry()
    raise UserError(f"{row} is no {kind.__module__}.{kind.__name__} with all of its methods")


def resolve(row: str) -> Any:
    """The object of a row. NotInstalled without its module, UserError if the module lacks it."""
    module, _, name = row.partition(":")
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        if error.name != name:
            raise
        raise UserError(f"{row}: {module} has no {name}; install its package again") from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a library that the module needs
        raise NotInstalled(
            f"{row} is not installed: there is no {error.name}; install its package again"
        ) from error
