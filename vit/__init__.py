"""Vision Transformers for image classification: train, fine-tune, evaluate, publish."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.data.module import ImageData as ImageData
    from vit.extensions.adaptation.distillation import Distillation as Distillation
    from vit.extensions.adaptation.lora import LoRA as LoRA
    from vit.extensions.formats.publish import push_to_hub as push_to_hub
    from vit.extensions.notebook.training import Run as Run
    from vit.extensions.notebook.training import fit as fit
    from vit.extensions.notebook.training import from_recipe as from_recipe
    from vit.extensions.recipes.ema import EMA as EMA
    from vit.extensions.recipes.foreach import LAMB as LAMB
    from vit.extensions.recipes.foreach import SGDW as SGDW
    from vit.extensions.recipes.randaugment import RandAugment as RandAugment
    from vit.extensions.serving.image_transform import transforms as transforms
    from vit.extensions.serving.write import export as export
    from vit.extensions.transfer.pseudo import Pseudo as Pseudo
    from vit.inference.classifier import Classifier as Classifier
    from vit.inference.classifier import load as load
    from vit.models.config import ViTConfig as ViTConfig
    from vit.models.vision_transformer import VisionTransformer as VisionTransformer
    from vit.models.zoo import list_models as list_models
    from vit.training.callbacks.by_size import FineTuneBySize as FineTuneBySize
    from vit.training.callbacks.linear_probe import LinearProbe as LinearProbe
    from vit.training.image_classifier import ImageClassifier as ImageClassifier
    from vit.training.optimizers.muon import MuonWithAdamW as MuonWithAdamW
    from vit.weights.pretrained import create_model as create_model

# Public names are imported on first use, so that `import vit` stays light. Recipes and config.yaml
# name classes by them: class_path: vit.EMA.
_HOMES = {
    "Classifier": "vit.inference.classifier",
    "Distillation": "vit.extensions.adaptation.distillation",
    "EMA": "vit.extensions.recipes.ema",
    "FineTuneBySize": "vit.training.callbacks.by_size",
    "ImageClassifier": "vit.training.image_classifier",
    "ImageData": "vit.data.module",
    "LAMB": "vit.extensions.recipes.foreach",
    "LinearProbe": "vit.training.callbacks.linear_probe",
    "LoRA": "vit.extensions.adaptation.lora",
    "MuonWithAdamW": "vit.training.optimizers.muon",
    "Pseudo": "vit.extensions.transfer.pseudo",
    "RandAugment": "vit.extensions.recipes.randaugment",
    "Run": "vit.extensions.notebook.training",
    "SGDW": "vit.extensions.recipes.foreach",
    "ViTConfig": "vit.models.config",
    "VisionTransformer": "vit.models.vision_transformer",
    "create_model": "vit.weights.pretrained",
    "export": "vit.extensions.serving.write",
    "fit": "vit.extensions.notebook.training",
    "from_recipe": "vit.extensions.notebook.training",
    "list_models": "vit.models.zoo",
    "load": "vit.inference.classifier",
    "push_to_hub": "vit.extensions.formats.publish",
    "transforms": "vit.extensions.serving.image_transform",
}
__all__ = list(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("vitkit")
    if name not in _HOMES:
        raise AttributeError(f"module 'vit' has no attribute {name!r}")
    from vit.tables import resolve

    return resolve(f"{_HOMES[name]}:{name}")


def __dir__() -> list[str]:
    return __all__
