"""Cost of BiT ResNets and hybrid stems per unit, from their configuration.

Weight standardisation and norms count for memory, not for multiply-adds, as in PyTorch's counter.
Sources: BiT (arXiv:1912.11370, section 3.1); ViT (arXiv:2010.11929, section 4.1).
"""

from vit.compute.units import FLOAT, Precision, Unit
from vit.models.config import ROOT_CHANNELS, ResNetConfig, ViTConfig

INDEX = 8
"""Bytes of an index that max pooling saves."""

Size = tuple[int, int]


def resnet_units(config: ResNetConfig, precision: Precision) -> list[Unit]:
    """Units of a BiT ResNet-v2 at `config.size`: root, residual units, head with loss."""
    root = Unit(name="root", precision=precision)
    (height, width), channels = config.size, config.root_channels
    root.keep(height * width * config.in_channels)
    size = root.conv((height, width), (config.in_channels, channels), 7, 2, same=False)
    root.reads_pixels = True
    root.keep((size[0] + 2) * (size[1] + 2) * channels)  # padded input of the pooling
    size = _half(size)
    root.kept += size[0] * size[1] * channels * INDEX
    units = [root]
    for s, depth in enumerate(config.depths):
        mid = config.root_channels * 2**s
        for b in range(depth):
            name = f"stage {s + 1} unit {b + 1}"
            unit = Unit(name=name, precision=precision)
            size = _pre_activation(unit, size, channels, mid, 2 if s and not b else 1)
            channels = 4 * mid
            units.append(unit)
    head = Unit(name="head", precision=precision)
    count = size[0] * size[1]
    head.group_norm(count, channels)
    head.kept += count * channels * precision.norm
    head.keep(channels)
    if config.num_classes:
        head.linear(1, channels, config.num_classes)
        head.classifier_macs = head.macs
        head.kept += config.num_classes * FLOAT
    return [*units, head]


def _pre_activation(unit: Unit, size: Size, channels: int, mid: int, stride: int) -> Size:
    """BiT's residual unit: norm and ReLU precede each convolution."""

    def activate(size: Size, channels: int, readers: int = 1) -> None:
        count = size[0] * size[1]
        unit.group_norm(count, channels)
        unit.kept += count * channels * unit.precision.norm  # ReLU saves its output
        for _ in range(readers):
            unit.cast(count * channels)

    unit.input_kept = size[0] * size[1] * channels * unit.precision.product
    projected = channels != 4 * mid or stride != 1
    activate(size, channels, readers=2 if projected else 1)
    if projected:
        unit.conv(size, (channels, 4 * mid), 1, stride, same=False)
    unit.conv(size, (channels, mid), 1, 1, same=False)
    activate(size, mid)
    out = unit.conv(size, (mid, mid), 3, stride, same=False)
    activate(out, mid)
    return unit.conv(out, (mid, 4 * mid), 1, 1, same=False)


def hybrid_stem(config: ViTConfig, precision: Precision) -> list[Unit]:
    """The post-activation ResNet of a hybrid; without stages, only its root."""
    assert config.stem_depths is not None
    centred = config.ws_mode == "google_hybrid"  # the others are a LayerNorm of the kernel
    root = Unit(name="stem root", precision=precision, keeps_centred=centred)
    height, width = config.size
    root.input_kept = height * width * config.in_channels * FLOAT
    root.keep((height + 5) * (width + 5) * config.in_channels)  # padded
    size = root.conv((height, width), (config.in_channels, ROOT_CHANNELS), 7, 2, same=True)
    root.reads_pixels = True
    _norm_relu(root, size, ROOT_CHANNELS)
    root.kept += (
        (size[0] + 1) * (size[1] + 1) * ROOT_CHANNELS * precision.norm
    )  # padded for the pooling
    size, channels = _half(size), ROOT_CHANNELS
    root.kept += size[0] * size[1] * channels * INDEX
    units = [root]
    for s, depth in enumerate(config.stem_depths):
        for b in range(depth):
            name = f"stem stage {s + 1} unit {b + 1}"
            unit = Unit(name=name, precision=precision, keeps_centred=centred)
            if not s and not b and not precision.mixed:
                unit.keep(size[0] * size[1] * channels)  # later inputs are outputs of a ReLU
            size = _post_activation(
                unit, size, channels, ROOT_CHANNELS * 2**s, 2 if s and not b else 1
            )
            channels = 4 * ROOT_CHANNELS * 2**s
            units.append(unit)
    return units


def _post_activation(unit: Unit, size: Size, channels: int, mid: int, stride: int) -> Size:
    """The hybrids' residual unit: norm and ReLU follow each convolution."""
    count = size[0] * size[1]
    unit.input_kept = count * channels * unit.precision.norm
    if channels != 4 * mid or stride != 1:
        unit.cast(count * channels)
        out = unit.conv(size, (channels, 4 * mid), 1, stride, same=True)
        unit.group_norm(out[0] * out[1], 4 * mid)
    unit.cast(count * channels)
    unit.conv(size, (channels, mid), 1, 1, same=True)
    _norm_relu(unit, size, mid)
    if stride == 1:
        unit.cast(count * mid)
    else:
        unit.keep((size[0] + 1) * (size[1] + 1) * mid)  # padded
    out = unit.conv(size, (mid, mid), 3, stride, same=True)
    _norm_relu(unit, out, mid)
    unit.cast(out[0] * out[1] * mid)
    unit.conv(out, (mid, 4 * mid), 1, 1, same=True)
    _norm_relu(unit, out, 4 * mid)
    return out


def _norm_relu(unit: Unit, size: Size, channels: int) -> None:
    """GroupNorm saves its input, ReLU its output."""
    unit.group_norm(size[0] * size[1], channels)
    unit.kept += size[0] * size[1] * channels * unit.precision.norm


def _half(size: Size) -> Size:
    """Size after a stride of 2."""
    return -(-size[0] // 2), -(-size[1] // 2)
