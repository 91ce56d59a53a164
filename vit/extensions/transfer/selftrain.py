"""`vit selftrain`: a teacher answers unlabelled images, of which a student learns, and then teaches
(Noisy Student, arXiv:1911.04252, Algorithm 1). Shapes: n images, k classes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vit.console import say
from vit.data.module import ImageData
from vit.data.settings import Splitting
from vit.data.sources import PathList, SplitName
from vit.data.trained_on import TrainedOn
from vit.errors import UserError, some_of
from vit.extensions.answers.answer_files import identity
from vit.extensions.evaluation.features import Extractor, device_of
from vit.extensions.licences.rows import KEY, TEACHER, inherit
from vit.extensions.serving.engines import EngineClassifier
from vit.extensions.sources.digests import images_digest
from vit.extensions.transfer.pseudo import Answers, check_unseen
from vit.extensions.transfer.transfer import check_free, check_plan, train
from vit.inference.classifier import Classifier, load
from vit.models.zoo import canonical_name
from vit.recipes import list_recipes
from vit.runs.following import same_place
from vit.runs.lineage import known_by, note_seen
from vit.runs.options import Options
from vit.runs.records import read_summary, recorded_options
from vit.runs.short_names import Words
from vit.weights.names import TRAINED_ON
from vit.weights.native import save_native
from vit.weights.pretrained import inspect_pretrained, load_pretrained
from vit.writing import writable, write_json

Row = dict[str, Any]
"""A model, in JSON types: `model`, teacher or student 1, ...; `run`, where it is; `parameters`; the
unlabelled `images` that it has learned, with repeats, and its teacher's mean `confidence` in them;
accuracies on `val` and `test`. None is what there is not."""


@dataclass(frozen=True, kw_only=True)
class SelfTraining:
    """The command line of `vit selftrain`."""

    arguments: list[str]
    """Of every `vit fit`."""
    unlabelled: str
    teacher: str | None
    iterations: int
    students: list[str]
    """Architecture or recipe of each student; the last one stands for those after it."""
    pseudo: dict[str, Any]
    """The fields of `vit.Pseudo` but the two places."""
    out: Path

    def __post_init__(self) -> None:
        taken = ("--run_dir", "--resume", "--data.pseudo", "--trainer.fast_dev_run")
        check_free("selftrain", Words(self.arguments).written, taken)
        if (named := len(self.students)) > self.iterations:
            raise UserError(f"--students has {named} names, and --iterations is {self.iterations}")

    def of_student(self, number: int) -> list[str]:
        """Arguments of the `vit fit` of a student, from 1."""
        places = {"answers": str(self.answers_of(number)), "root": self.paths.root}
        pseudo = {"class_path": "vit.Pseudo", "init_args": {**self.pseudo, **places}}
        words = [*Words(self.arguments).written, f"--data.pseudo={json.dumps(pseudo)}"]
        if self.students:
            name = self.students[min(number, len(self.students)) - 1]
            is_recipe = name in list_recipes() or Path(name).is_file()
            words += ["-c", name] if is_recipe else [f"--model.name={canonical_name(name)}"]
        return words

    def answers_of(self, number: int) -> Path:
        """The file that a student learns."""
        return self.out / f"answers_{number}.safetensors"

    @cached_property
    def base(self) -> Options:
        """Options of the first teacher, and for the labelled images."""
        return Options(self.arguments)

    @cached_property
    def images(self) -> ImageData:
        """The unlabelled images. UserError without any."""
        names = ("channels", "batch_size", "loading")
        options: dict[str, Any] = {name: getattr(self.base.data, name) for name in names}
        options |= {"root": self.unlabelled, "splits": Splitting(val_fraction=0, test_fraction=0)}
        return ImageData(**options).read_as(labelled=False)

    @property
    def paths(self) -> PathList:
        """Paths of the unlabelled images. UserError for images that are no files."""
        items = self.images.splits.train.items
        if not isinstance(items, PathList):
            raise UserError(f"--unlabelled {self.unlabelled}: give a folder of image files")
        return items

    def run(self) -> list[Row]:
        """Trains what is not trained yet; returns the teacher's row, and one of each student.

        Writes `out`/selftrain.json after each of them. UserError for a mistake; Stopped after a
        signal, once the current run is saved.
        """
        self._check()
        rows: list[Row] = []
        for number in range(self.iterations + 1):
            name = f"student {number}" if number else "teacher"
            say(f"{name}:")
            if number:
                row = self._student(number, rows[-1]["run"])
            elif self.teacher is None:
                row = _trained(self.arguments, self.out / "teacher")
            else:
                row = self._scored(self.teacher)
            rows.append({"model": name, "images": None, "confidence": None, **row})
            write_json(self.out / "selftrain.json", {"rows": rows})
        return rows

    def _check(self) -> None:
        """UserError for mistakes, before anything is trained."""
        data, images = self.base.data, self.images.splits.train
        if self.teacher is not None:
            self._check_teacher(self.teacher)
            for name, held_out in data.splits.present().items():
                if name != "train":
                    note_seen(self.teacher, held_out, name)
        say(f"{len(self.paths):,} unlabelled images in {self.paths.root}")
        if not self.base.module_class.labelled or data.multilabel:
            raise UserError(
                "`vit selftrain` needs a recipe that classifies, and one label an image"
            )
        students: dict[str, dict[str, Any]] = {}
        for number, name in enumerate(self.students or [""], start=1):
            try:
                student = Options(self.of_student(number))
                student.build_model(student.data)
                students[str(number)] = recorded = student.recorded()
                del recorded["data"]["pseudo"]  # its answers do not exist yet
            except UserError as error:
                more = "; or name a recipe in --students" if name else ""
                raise UserError(f"student {number} {name}: {error}{more}") from error
            if student.data.splits.digests != data.splits.digests:
                raise UserError(f"--students {name} changes the labelled images, or their splits")
        sets = data.splits.present().items()
        facts = {
            "options": self.base.recorded(),
            "students": students,
            "teacher": self.teacher and identity(self._opened(self.teacher)),
            "pseudo": self.pseudo,
            "images": {**data.digests, "unlabelled": images_digest(images)[:16]},
            "contents": {name: images_digest(each, contents=True) for name, each in sets},
        }
        file = writable(self.out, "--out") / "plan.json"
        if not file.is_file():  # else they were compared before
            check_unseen(images, data.splits, data.channels, data.loading)
        check_plan(file, facts)

    def _opened(self, teacher: str) -> Classifier:
        """UserError for a teacher of other classes than those of train."""
        classifier = load(teacher)
        other = {*classifier.classes} ^ {*self.base.data.classes}
        if other or classifier.multilabel:
            which = some_of(map(repr, sorted(other)), 3) or "each is a yes or no"
            raise UserError(f"the teacher {teacher} has other classes than the images: {which}")
        return classifier

    def _check_teacher(self, teacher: str) -> None:
        """UserError for a run on the same data that held out other images."""
        recorded, data = recorded_options(Path(teacher)).get("data") or {}, self.base.data
        named = recorded.get("root") is None and data.root is None  # with a root it says nothing
        same = same_place(recorded.get("root"), data.root)
        if not (recorded.get("dataset") == data.dataset if named else same):
            return
        before = read_summary(Path(teacher)).get("splits") or {}
        for split, digest in data.digests.items():
            if split in ("val", "test") and before and before.get(split) != digest:
                raise UserError(
                    f"the teacher {teacher} held out other images than {split}, and learned some "
                    "of them; give its --seed and --data.splits"
                )

    def _student(self, number: int, teacher: str) -> Row:
        """The row of a student of the model in `teacher`."""
        classifier = self._opened(teacher)
        answers = self._answers(classifier, self.answers_of(number))
        rows = answers.chosen(self.pseudo["confidence"], self.pseudo["per_class"])
        confidence = float(answers.values[rows].max(1).mean(dtype="f8"))
        learned = len(rows) if self.pseudo["ratio"] > 0 else 0
        facts = {"images": learned, "confidence": confidence}
        row = _trained(self.of_student(number), self.out / f"student_{number}")
        student = Path(row["run"]) / "model"
        _pass_on(_licences(classifier), student)
        if (known := known_by(teacher)) is not None:  # what the student knows of them by it
            record = TrainedOn.read(student / TRAINED_ON)
            here = np.union1d(record.here, known.digests)
            record._replace(here=here).write(student / TRAINED_ON)
        return {**row, **facts}

    def _answers(self, teacher: Classifier, file: Path) -> Answers:
        """The answers for the unlabelled images; those of an earlier call are reused."""
        weights = identity(teacher)
        if file.is_file():
            answers = Answers.read(file)
            if answers.weights != weights:
                raise UserError(f"{file} holds the answers of another teacher; delete it")
            return answers
        values, _, indices = self._outputs(teacher, self.images, "train")
        names = [self.paths.name(index) for index in indices]
        answers = Answers(values.astype("f2"), names, self.base.data.classes, weights)
        answers.write(file)
        return answers

    def _scored(self, weights: str) -> Row:
        """The row of a teacher that is given."""
        teacher, data = self._opened(weights), self.base.data
        scores: Row = {"val": None, "test": None}
        for split in data.splits.present().keys() - {"train"}:
            values, labels, _ = self._outputs(teacher, data, split)
            scores[split] = float((values.argmax(1) == labels).mean())
        parameters = sum(parameter.numel() for parameter in teacher.model.parameters())
        return {"run": weights, "parameters": parameters or None, **scores}  # None in an export

    def _outputs(self, teacher: Classifier, data: ImageData, split: SplitName) -> tuple[Any, ...]:
        """Probabilities `n k` in the order of the classes of train, labels and indices of images,
        as the teacher evaluates them."""
        device = device_of(self.base.config.trainer.accelerator)
        exported = isinstance(teacher, EngineClassifier)
        model: Any = teacher.engine if exported else teacher.model
        data.preprocess = teacher.preprocess
        outputs = Extractor(model, "logits", device=device)(data, split)
        order = [teacher.classes.index(name) for name in self.base.data.classes]
        values = teacher.activated(torch.from_numpy(outputs.values))[:, order].numpy()
        return values, outputs.labels, outputs.indices


def _licences(classifier: Classifier) -> Mapping[str, Any]:
    """`inherited` of the model; of an exported one by its description."""
    if isinstance(classifier, EngineClassifier):
        return {KEY: classifier.engine.description.licences}
    network: Any = classifier.model
    return network.inherited


def _pass_on(licences: Mapping[str, Any], student: Path) -> None:
    """Adds the licences of a teacher to the model directory of its student."""
    if not licences.get(KEY):
        return
    model, info = load_pretrained(student)[0], inspect_pretrained(student)
    before = model.inherited
    inherit(model, licences, TEACHER)
    if model.inherited != before:
        about = {"classes": info.classes, "preprocess": info.preprocess, "extra": info.extra}
        save_native(student, model, **about)


def _trained(arguments: list[str], folder: Path) -> Row:
    """The row of a run, which is trained, resumed or reused."""
    train([*arguments, f"--run_dir={folder}"])
    summary = read_summary(folder)
    scores = {split: summary["metrics"].get(f"{split}/acc1") for split in ("val", "test")}
    return {"run": str(folder), "parameters": summary["parameters"], **scores}
