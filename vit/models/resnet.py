"""The ResNets of the paper: BiT's (v2, pre-activation) and the stem of the hybrids (v1.5).

Both use GroupNorm and weight standardisation (arXiv:1903.10520) instead of BatchNorm, with the
stride on the 3x3 convolution. BiT has fixed padding, the hybrids TensorFlow's SAME.
Shapes: b c h w images and maps, n = h w tokens, d width. Parameter names are timm's resnetv2.
Sources: big_transfer, bit_pytorch/models.py; vision_transformer, vit_jax/models_resnet.py.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit.models.backbone import Backbone, check_channels, run
from vit.models.config import ROOT_CHANNELS, ResNetConfig, WsMode
from vit.models.initialization import lecun_normal_, zero_
from vit.shapes import Float


def group_norm(channels: int, ws_mode: WsMode) -> nn.GroupNorm:
    """GroupNorm with 32 groups and the epsilon of the source."""
    return nn.GroupNorm(32, channels, eps=1e-6 if ws_mode == "google_hybrid" else 1e-5)


def same_padding(size: int, kernel_size: int, stride: int) -> tuple[int, int]:
    """Pixels that SAME adds before and after an axis of `size`; an odd pixel goes after."""
    total = max((-(-size // stride) - 1) * stride + kernel_size - size, 0)
    return total // 2, total - total // 2


def pad_same(x: Float[Tensor, "b c h w"], kernel_size: int, stride: int) -> Tensor:
    """Pads maps with zeros, `b c ph pw`, so that a VALID convolution equals SAME."""
    vertical, horizontal = (same_padding(n, kernel_size, stride) for n in x.shape[-2:])
    return F.pad(x, (*horizontal, *vertical)) if any(horizontal + vertical) else x


class StdConv2d(nn.Conv2d):
    """Convolution without bias; kernels are standardised to mean 0 and variance 1 per output."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        *,
        ws_mode: WsMode,
        same: bool,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, bias=False)  # pyright: ignore
        self.ws_mode: WsMode = ws_mode
        self.same = same

    def forward(self, input: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        kernel_size, stride = self.kernel_size[0], self.stride[0]
        if self.same and stride > 1:
            padding = 0
            input = pad_same(input, kernel_size, stride)
        else:
            padding = kernel_size // 2  # equals SAME at stride 1
        return F.conv2d(input, self.standardized(), None, stride, padding)

    def standardized(self) -> Float[Tensor, "d c kh kw"]:
        """The standardised kernels, computed in at least float32 because the epsilons are tiny."""
        weight = self.weight if self.weight.dtype == torch.float64 else self.weight.float()
        # var_mean would take a third of a forward pass on CPUs.
        if self.ws_mode == "google_hybrid":
            centred = weight - weight.mean((1, 2, 3), keepdim=True)
            std = centred.square().mean((1, 2, 3), keepdim=True).sqrt()
            standard = centred / (std + 1e-5)
        else:
            eps = 1e-10 if self.ws_mode == "google_bit" else 1e-8
            standard = F.layer_norm(weight, weight.shape[1:], eps=eps)
        return standard.to(self.weight.dtype)


class PreActBottleneck(nn.Module):
    """BiT's residual unit: norm and ReLU precede every convolution; the shortcut has no norm."""

    def __init__(self, in_channels: int, mid: int, stride: int, ws_mode: WsMode) -> None:
        super().__init__()
        conv = partial(StdConv2d, ws_mode=ws_mode, same=False)
        self.downsample = None
        if in_channels != 4 * mid or stride != 1:
            self.downsample = nn.Sequential()
            self.downsample.add_module("conv", conv(in_channels, 4 * mid, 1, stride))
        self.norm1, self.conv1 = group_norm(in_channels, ws_mode), conv(in_channels, mid, 1)
        self.norm2, self.conv2 = group_norm(mid, ws_mode), conv(mid, mid, 3, stride)
        self.norm3, self.conv3 = group_norm(mid, ws_mode), conv(mid, 4 * mid, 1)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        y = F.relu(self.norm1(x))
        shortcut = x if self.downsample is None else self.downsample(y)
        y = self.conv1(y)
        y = self.conv2(F.relu(self.norm2(y)))
        return self.conv3(F.relu(self.norm3(y))) + shortcut


class PostActBottleneck(nn.Module):
    """The hybrids' residual unit: every convolution is followed by its norm, SAME padding."""

    def __init__(self, in_channels: int, mid: int, stride: int, ws_mode: WsMode) -> None:
        super().__init__()
        conv = partial(StdConv2d, ws_mode=ws_mode, same=True)
        self.downsample = None
        if in_channels != 4 * mid or stride != 1:
            self.downsample = nn.Sequential()
            self.downsample.add_module("conv", conv(in_channels, 4 * mid, 1, stride))
            self.downsample.add_module("norm", group_norm(4 * mid, ws_mode))
        self.conv1, self.norm1 = conv(in_channels, mid, 1), group_norm(mid, ws_mode)
        self.conv2, self.norm2 = conv(mid, mid, 3, stride), group_norm(mid, ws_mode)
        self.conv3, self.norm3 = conv(mid, 4 * mid, 1), group_norm(4 * mid, ws_mode)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        shortcut = x if self.downsample is None else self.downsample(x)
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + shortcut)


class Stage(nn.Module):
    """Bottleneck blocks at one resolution; the first one has the stride."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "b c h w"], recompute: bool) -> Float[Tensor, "b d gh gw"]:
        for block in self.blocks:
            x = run(block, recompute, x)
        return x


def stages(
    block: type[PreActBottleneck | PostActBottleneck],
    depths: Sequence[int],
    root: int,
    ws_mode: WsMode,
) -> nn.ModuleList:
    """Stages; s has 4 * 2^s * root channels, and all but the first halve the resolution."""
    stages, channels = nn.ModuleList(), root
    for s, depth in enumerate(depths):
        blocks: list[nn.Module] = []
        for b in range(depth):
            blocks.append(block(channels, root * 2**s, 2 if s and not b else 1, ws_mode))
            channels = 4 * root * 2**s
        stages.append(Stage(blocks))
    return stages


class HybridRoot(nn.Module):
    """Convolution, norm, ReLU and pooling with total stride 4: the whole stem of R+ViT-Ti/16."""

    def __init__(self, in_channels: int, ws_mode: WsMode) -> None:
        super().__init__()
        self.conv = StdConv2d(in_channels, ROOT_CHANNELS, 7, 2, ws_mode=ws_mode, same=True)
        self.norm = group_norm(ROOT_CHANNELS, ws_mode)

    def forward(
        self, images: Float[Tensor, "b c h w"], recompute: bool = False
    ) -> Float[Tensor, "b d gh gw"]:
        return run(self._forward, recompute, images)

    def _forward(self, images: Tensor) -> Tensor:
        # Padding with zeros equals -inf here, because the input is a ReLU's output.
        return F.max_pool2d(pad_same(F.relu(self.norm(self.conv(images))), 3, 2), 3, 2)


class HybridStem(nn.Module):
    """The post-activation ResNet before the patches of a hybrid (section 3.1)."""

    def __init__(self, in_channels: int, depths: Sequence[int], ws_mode: WsMode) -> None:
        super().__init__()
        self.stem = HybridRoot(in_channels, ws_mode)
        self.stages = stages(PostActBottleneck, depths, ROOT_CHANNELS, ws_mode)

    def forward(
        self, images: Float[Tensor, "b c h w"], recompute: bool
    ) -> Float[Tensor, "b d gh gw"]:
        x = self.stem(images, recompute)
        for stage in self.stages:
            x = stage(x, recompute)
        return x


def init_convolutions(model: nn.Module) -> None:
    """LeCun normal kernels, as in Flax. The last norms start at zero in hybrids, not in BiT."""
    for module in model.modules():
        if isinstance(module, StdConv2d):
            lecun_normal_(module)
        if isinstance(module, PostActBottleneck):
            nn.init.zeros_(module.norm3.weight)


class ResNet(Backbone):
    """BiT ResNet-v2 (arXiv:1912.11370, section 3.1), for images of any size.

    Layers are stages, and `patch_size` is the stride of the last one.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        root, mode = config.root_channels, config.ws_mode
        self.stem_features = ((root, 2),)
        self.layer_channels = config.stage_channels
        self.layer_strides = [4 * 2**s for s in range(len(config.depths))]
        self.num_features = self.embed_dim = self.head_hidden_size = self.layer_channels[-1]
        self.patch_size = self.layer_strides[-1]

        conv = StdConv2d(config.in_channels, root, 7, 2, ws_mode=mode, same=False)
        self.stem = nn.Sequential()
        self.stem.add_module("conv", conv)
        self.stages = stages(PreActBottleneck, config.depths, root, mode)
        self.norm = group_norm(self.num_features, mode)
        self.head = self._head(config.num_classes)
        self.init_weights()

    def _head(self, num_classes: int) -> nn.Sequential:
        head = nn.Sequential()
        if num_classes:
            head.add_module("fc", zero_(nn.Conv2d(self.num_features, num_classes, 1)))
        return head

    @property
    def num_classes(self) -> int:
        """Outputs of the head; 0 without one."""
        return self.config.num_classes

    @property
    def head_layers(self) -> list[nn.Module]:
        """The output layers; empty if num_classes is 0."""
        return list(self.head)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b k"]:
        """Logits, or pooled features `b d` if num_classes is 0."""
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d gh gw"]:
        """The last map after the final norm and ReLU, as in timm's ResNets."""
        return self.intermediate_layers(images)[0]

    def forward_head(
        self, maps: Float[Tensor, "b d gh gw"], pre_logits: bool = False
    ) -> Float[Tensor, "b k"]:
        """Logits from `forward_features`' output; with `pre_logits` the head's input, `b d`."""
        x = self.pool(maps.flatten(2).transpose(1, 2))
        return x if pre_logits else self.head(x[..., None, None]).flatten(1)

    def reset_classifier(self, num_classes: int) -> None:
        """Replaces the head with a zero-initialized one of `num_classes` outputs; 0 removes it."""
        self.config = replace(self.config, num_classes=num_classes)
        self.head = self._head(num_classes).to(next(self.parameters())).train(self.training)

    def features(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n d"]:
        """Positions of the last map, row by row, after the final norm and ReLU."""
        return self.intermediate_layers(images, reshape=False)[0]

    def pool(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        """The mean over all positions."""
        return tokens.mean(1)

    def _outputs(
        self, images: Tensor, wanted: Sequence[int], end: int
    ) -> tuple[dict[int, Tensor], Tensor]:
        check_channels(images, self.config.in_channels)
        x = self.stem(images)
        outputs = {0: x} if 0 in wanted else {}
        # Zeros as in BiT, not -inf: maps before the first norm may be negative.
        x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2)
        for i, stage in enumerate(self.stages[:end], start=1):
            x = stage(x, self.activation_checkpointing)
            if i in wanted:
                outputs[i] = x
        return outputs, x

    def _normed(self, x: Tensor, layer: int) -> Tensor:
        return F.relu(self.norm(x)) if layer == len(self.layer_channels) else x

    def _parts(self, x: Tensor, layer: int, images: Tensor) -> tuple[Tensor, None]:
        return x, None

    @torch.no_grad()
    def init_weights(self) -> None:
        """Follows big_vision, models/bit_paper.py: Flax's convolutions; the head is zero."""
        init_convolutions(self)
