"""ImageData: from files to normalised batches on the device.

Shapes: b batch, c channels, h w pixels, k classes.
"""

from dataclasses import fields, replace
from functools import cached_property
from shlex import quote
from typing import Any, Self

from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from PIL import Image
from torch.utils.data import DataLoader

from vit.data.batches import BatchSize, asked_sizes, batches_per_epoch, divided
from vit.data.beginnings import check_beginnings
from vit.data.dataset import Batch, ImageDataset, Sample
from vit.data.decode import opener
from vit.data.find import check_source, find_splits
from vit.data.loaders import choose_num_workers, make_loader, share_of
from vit.data.memory import in_memory
from vit.data.sampler import TrainBatchSampler, balancing, check_words, evaluated, order_of
from vit.data.settings import (
    Columns,
    InputFormat,
    Labels,
    Loading,
    ModelClasses,
    Reading,
    Sampling,
    Splitting,
)
from vit.data.sources import ImageSet, Mixed, Mixture, SplitName, Splits
from vit.data.trained_on import Known
from vit.data.transforms import TrainTransform
from vit.errors import UserError
from vit.facts import Facts
from vit.preprocessing import Preprocess, Size, picture


class ImageData(LightningDataModule):
    """Images with labels, split into train, val and test.

    Give `dataset` (a name) or `root` (your files). If both are given, the images come from `root`
    and `dataset` only says what they are: `vit fit -c cifar10 --data.root my_cifar/`.

    Args:
        dataset: A dataset by name, downloaded if need be: digits, cifar10, cifar100, svhn, stl10,
            eurosat, oxford_iiit_pet, flowers102, food101, dtd, imagenet.
        root: A folder of class folders, with or without train/, val/ and test/ above them; a CSV or
            Parquet file with the columns path, label and, optionally, split; or tar shards: a
            folder of them, a quoted 'train-{000..127}.tar', or addresses. Wins over dataset.
        data_dir: Where downloads go. Default: ~/.cache/vit/data.
        channels: Channels of images that are not RGB, 1 (gray) to 16: PNG and TIFF of 8 or 16 bits,
            and .npy arrays, with the values of the file. Default: those of the pretrained weights,
            or RGB of 8 bits, into which all images are turned.
        image_size: Pixels the model sees, one side or (height, width). Default: that of the
            pretrained weights, or 224.
        batch_size: Images in a batch of one process. Default: what global_batch leaves for each
            process, or 64. auto: the largest that fits, chosen by `vit fit` before the first step.
        global_batch: Images per step of the optimizer, of all processes together. Gradients are
            accumulated over as many batches as that takes.
        augment: Random changes of training images.
        label_separator: Text between the labels of one image in a CSV or Parquet file, such
            as ";". Default: "|", where a label has it.
        columns: Names of the columns of a CSV or Parquet file.
        labels: tree: classes are leaves of a tree, named by their paths: the innermost folders, or
            labels such as animal/bird, below the name or path in a column `parent` if there is one.
        inputs: Cut of evaluation images, and normalisation.
        sampling: Balanced classes, repeated augmentation.
        shuffle: blocks takes shards, row groups or runs of 64 files in a new order each epoch, and
            mixes the images of a few at a time: for disks that turn, and for object stores.
        seed: Of the training order, the augmentation and, by default, the splits (0).
        splits: Shares of train that become val and test, and the seed of these cuts.
        loading: Worker processes, images kept in memory, and unreadable images.
        pseudo: Images that are learned, too: vit.Pseudo, unlabelled ones by a teacher's answers.
        images: Images of a Python program, as `ImageData.of` takes them, or its `Splits`.
    """

    labelled = True
    known: Known | None = None
    evaluation_split: SplitName = "test"
    """The split of the test and predict loops."""
    crops: int | None = None
    """Training shows each image in so many crops, which come again; None: all differ."""
    consumed_samples = 0
    _splits: Splits | None = None
    _datasets: dict[tuple[str, bool], ImageDataset]
    skip_option = "--data.loading.on_error skip"

    def __init__(
        self,
        dataset: str | None = None,
        root: str | None = None,
        *,
        data_dir: str | None = None,
        channels: int | None = None,
        image_size: int | Size | None = None,
        batch_size: BatchSize = None,
        global_batch: int | None = None,
        augment: TrainTransform = TrainTransform(),
        label_separator: str | None = None,
        columns: Columns = Columns(),
        labels: Labels = "plain",
        inputs: InputFormat = InputFormat(),
        sampling: Sampling = Sampling(),
        shuffle: str = "images",
        seed: int | None = None,
        splits: Splitting = Splitting(),
        loading: Loading = Loading(),
        pseudo: Mixture | None = None,
        images: object = None,
    ) -> None:
        super().__init__()
        check_words(labels, shuffle, balanced=sampling.balanced)
        self.dataset, self.root, self.data_dir, self.images = dataset, root, data_dir, images
        self.inputs, self.augment, self.sampling, self.loading = inputs, augment, sampling, loading
        self.channels, self.shuffle, self.global_batch = channels, shuffle, global_batch
        self.seed: int = (splits.seed or 0) if seed is None else seed
        splits = replace(splits, seed=self.seed if splits.seed is None else splits.seed)
        self.tree, arrays = labels == "tree", channels is not None
        self._reading = Reading(splits, columns, label_separator, tree=self.tree, arrays=arrays)
        size = 224 if image_size is None else image_size
        self.image_size: Size = (size, size) if isinstance(size, int) else size
        self._preprocess = None if channels is not None else inputs.preprocess(self.image_size)
        augment.check(self.image_size, channels)
        self._asked_batch, self.batch_size = asked_sizes(batch_size, global_batch)
        self.pseudo, self._datasets = pseudo, {}
        check_source(dataset, images or root)

    @classmethod
    def of(cls, train: object, val: object = None, test: object = None, **options: Any) -> Self:
        """The data module of images that are given as objects; `options` are ImageData's others.

        Each split is a folder, a list of (path, label), or a map-style Dataset of (image, label)
        such as torchvision's and Hugging Face's. `splits` cuts those from train that are not given.
        """
        return cls(images=(train, val, test), **options)

    def read_as(
        self,
        *,
        labelled: bool = True,
        classes: list[str] | None = None,
        multilabel: bool = False,
    ) -> "ImageData":
        """Sets another purpose of the images than training on their labels; returns itself.

        Args:
            labelled: If false, `root` may be any folder of images.
            classes: Class names of a model that exists, in the order of its outputs: all of `root`
                is then one split, and a class may have no images.
            multilabel: That model is one for several labels per image.
        """
        if self.sampling.balanced and not labelled:
            raise UserError("sampling.balanced needs labels, which this task does not read")
        model = None if classes is None else ModelClasses(names=classes, multilabel=multilabel)
        self.labelled = labelled
        self._reading = replace(self._reading, labelled=labelled, model=model)
        return self

    def unseen_by(self, known: Known | None) -> Self:
        """Images that weights learned are no more held out; returns itself."""
        self.known, self._reading = known, replace(self._reading, known=known)
        return self

    def setup(self, stage: str) -> None:
        self.allow_zero_length_dataloader_with_multiple_devices = True  # of a small val
        if stage == "fit" and self.trainer is not None:
            self.share_batch(self.trainer)

    def share_batch(self, trainer: Trainer) -> None:
        """Divides global_batch among the processes of a Trainer and the batches of a step.

        Raises UserError for a remainder.
        """
        if self.global_batch is not None:
            asked = (self._asked_batch, trainer.world_size, trainer.accumulate_grad_batches)
            shares = divided(self.global_batch, *asked)
            self.batch_size, trainer.accumulate_grad_batches = shares

    @property
    def splits(self) -> Splits:
        """Classes and images, found at the first use."""
        if self._splits is None:
            images = self.images or self.root
            splits = find_splits(self.dataset, images, self._reading, data_dir=self.data_dir)
            if self.sampling.balanced and splits.multilabel:
                remedy = "not several; use model.loss.class_weights=balanced"
                raise UserError(f"sampling.balanced needs one label per image, {remedy}")
            self._splits = splits
        return self._splits

    def look(self, before: "ImageData | None" = None) -> Self:
        """Finds the images, and opens some; returns itself. `before`: a data module of the same
        files that has done so. UserError for images that cannot be opened, unless they are skipped.
        """
        if before is not None and before._reading == self._reading:
            self._splits = before.splits
        elif self.loading.on_error == "error":
            check_beginnings(self.splits, self.channels, self.remedy)
        return self

    @property
    def remedy(self) -> str:
        """The way on after an image that cannot be read."""
        root = isinstance(self.root, str) and quote(self.root) + " --labels tree" * self.tree
        check = f"`vit data check {root} --fix LIST.csv` lists all of them, " if root else ""
        return f"{check}{self.skip_option} leaves such images out"

    @property
    def preprocess(self) -> Preprocess:
        """The preprocessing, with `channels` and no mean and std by those of train."""
        if self._preprocess is None:
            assert self.channels is not None
            remedy = None if self.loading.on_error == "skip" else self.remedy
            inputs = opener().complete(self.inputs, self.splits.train, self.channels, remedy)
            self._preprocess = inputs.preprocess(self.image_size, self.channels)
        return self._preprocess

    @preprocess.setter
    def preprocess(self, preprocess: Preprocess) -> None:
        self._preprocess, self._datasets = preprocess, {}

    @property
    def facts(self) -> Facts:
        """The facts that a network is built for."""
        return Facts(**{field.name: getattr(self, field.name) for field in fields(Facts)})

    @property
    def classes(self) -> list[str]:
        """Names in the order of the labels."""
        return self.splits.classes

    @property
    def num_classes(self) -> int:
        return len(self.splits.classes)

    @property
    def multilabel(self) -> bool:
        """Labels are float `k` instead of an integer."""
        return self.splits.multilabel

    @property
    def counts(self) -> list[int]:
        """Training images of each class."""
        return self.splits.class_counts

    def samples_per_epoch(self, world_size: int) -> int:
        """Training samples in an epoch of `world_size` processes together."""
        batch = self.batch_size * world_size * self._of_trainer("accumulate_grad_batches", 1)
        ratio = self.pseudo.ratio if self.pseudo else 0.0
        return batches_per_epoch(len(self.splits.train), batch, ratio) * batch

    def image_set(self, split: SplitName) -> ImageSet:
        """The images of a split. Raises UserError if there is none."""
        if (images := self.splits.get(split)) is not None:
            return images
        source = self.root or self.dataset or "the data"
        raise UserError(f"{source} has no {split} split; add a {split} folder or its rows")

    def expected_images(self, split: SplitName) -> int:
        """Images that an evaluation of the split counts, on all processes together."""
        return len(self.image_set(split))

    def skipped_images(self, split: SplitName) -> int:
        """Images of the split that this process left out of evaluations as unreadable."""
        dataset = self._datasets.get((split, False))
        return 0 if dataset is None else dataset.num_skipped

    def open_image(self, split: SplitName, index: int) -> Image.Image:
        """An image of a split before preprocessing, in RGB; with `channels` a picture of it."""
        image = self._image_dataset(split, training=False).open(index)
        return image if isinstance(image, Image.Image) else picture(image)

    @cached_property
    def mixture(self) -> Mixed | None:
        """Train and the images that are learned beside it, if there are any."""
        return self.pseudo.mixed(self.splits) if self.pseudo and self.pseudo.ratio else None

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the splits, of images beside train, and of blocks that decide the order."""
        more = {"pseudo": self.mixture.digest} if self.mixture else {}
        order = order_of(self.shuffle, self.splits.train)
        more |= {self.shuffle: order.digest()} if order else {}
        return self.splits.digests | more

    @cached_property
    def contents(self) -> str | None:
        """The digest of the images of train, where shards have one of each; else None."""
        return self.splits.train.contents_digest()

    def summary(self) -> str:
        """A line such as '1,200 images of 3 classes: train 960, val 120, test 120 (...)'."""
        return self.splits.summary(self._reading.cut.seed or 0)

    def train_dataloader(self) -> DataLoader[Sample | None]:
        """Batches of keys from `consumed_samples` on; all ranks get equally many."""
        if self._of_trainer("overfit_batches", 0):
            raise UserError("overfit_batches draws other images each epoch; give fewer images")
        train = self.splits.train
        sampler = TrainBatchSampler(
            len(train),
            self.batch_size,
            seed=self.seed,
            rank=self._of_trainer("global_rank", 0),
            world_size=self._of_trainer("world_size", 1),
            repeats=self.sampling.repeats,
            progress=self,
            accumulated=self._of_trainer("accumulate_grad_batches", 1),
            crops=self.crops,
            weights=balancing(train.labels) if self.sampling.balanced else None,
            permuted=order_of(self.shuffle, train),
            others=self.mixture and self.mixture.others,
        )
        dataset = self._image_dataset("train", training=True)
        return self._loader(dataset, persistent=True, batch_sampler=sampler)

    def val_dataloader(self) -> DataLoader[Sample | None] | list[Batch]:
        """Batches of val, each image once; none of a fit without val. `validate` needs it."""
        if self.splits.val is None and self._is_fitting():
            return []
        return self.evaluation_loader("val", persistent=self._is_fitting())

    def test_dataloader(self) -> DataLoader[Sample | None]:
        """Batches of `evaluation_split` (test, unless it is set), each image once."""
        return self.evaluation_loader(self.evaluation_split)

    predict_dataloader = test_dataloader

    def evaluation_loader(
        self, split: SplitName, *, limit: int | list[int] | None = None, persistent: bool = False
    ) -> DataLoader[Sample | None]:
        """Batches of this process's share of a split, each image once, without augmentation.

        `limit`: at most so many images of all processes together, drawn by the seed, or positions.
        """
        dataset = self._image_dataset(split, training=False)
        shown = evaluated(len(dataset), limit, self.seed)
        rank, world_size = self._of_trainer("global_rank", 0), self._of_trainer("world_size", 1)
        share = share_of(shown, rank, world_size, self.batch_size)
        return self._loader(dataset, persistent=persistent, **share)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """uint8 `b c h w` -> normalised float32 `b c h w`, on the device."""
        images, labels, indices = batch
        return self.preprocess.normalize(images), labels, indices

    def state_dict(self) -> dict[str, Any]:
        """The position, the only state of the data, and the digests of the images."""
        digests = {"splits": self.digests, "contents": self.contents}
        return {"consumed_samples": self.consumed_samples, **digests}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.consumed_samples = int(state_dict["consumed_samples"])

    def _of_trainer(self, name: str, alone: int) -> int:
        """A number of the Trainer, or `alone` without one."""
        return getattr(self.trainer, name, alone)

    def _is_fitting(self) -> bool:
        return self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING

    def _image_dataset(self, split: SplitName, *, training: bool) -> ImageDataset:
        key = (split, training)
        if key not in self._datasets:
            mixed = training and self.mixture
            images = mixed.images if mixed else self.image_set(split)
            # Other loops than a fit show them once. A Dataset may change them each time.
            keeps = self.loading.cache == "auto" and self._is_fitting() and self.images is None
            transforms = self.preprocess, self.augment if training else None
            processes = self._of_trainer("num_devices", 1)
            self._datasets[key] = ImageDataset(
                images,
                *transforms,
                seed=self.seed,
                on_error=self.loading.on_error,
                remedy=self.remedy,
                planes=in_memory(images, *transforms, name=split, keeps=keeps, processes=processes),
            )
        return self._datasets[key]

    def _loader(self, dataset: ImageDataset, **options: Any) -> DataLoader[Sample | None]:
        workers = self.loading.num_workers
        if workers is None:
            workers = choose_num_workers(dataset, self._of_trainer("num_devices", 1))
        pinned = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        shape = self.image_size, self.channels
        return make_loader(dataset, *shape, num_workers=workers, pin_memory=pinned, **options)
