"""The public names and where they are defined; vit/__init__.py imports each on first use."""

from vit.data.module import ImageData as ImageData
from vit.extensions.adaptation.distillation import Distillation as Distillation
from vit.extensions.adaptation.lora import LoRA as LoRA
from vit.extensions.adaptation.named_head import NamedHead as NamedHead
from vit.extensions.answers.batch_classifier import BatchClassifier as BatchClassifier
from vit.extensions.backbones.contract import as_timm as as_timm
from vit.extensions.backbones.image_transform import transforms as transforms
from vit.extensions.backbones.registry import register_with_timm as register_with_timm
from vit.extensions.folds.out_of_fold import OutOfFold as OutOfFold
from vit.extensions.formats.publish import push_to_hub as push_to_hub
from vit.extensions.notebook.commands import check as check
from vit.extensions.notebook.commands import fewshot as fewshot
from vit.extensions.notebook.commands import inspect as inspect
from vit.extensions.notebook.commands import knn as knn
from vit.extensions.notebook.commands import probe as probe
from vit.extensions.notebook.commands import save as save
from vit.extensions.notebook.training import Run as Run
from vit.extensions.notebook.training import fit as fit
from vit.extensions.notebook.training import from_recipe as from_recipe
from vit.extensions.recipes.budget import Budget as Budget
from vit.extensions.recipes.ema import EMA as EMA
from vit.extensions.recipes.foreach import LAMB as LAMB
from vit.extensions.recipes.foreach import SGDW as SGDW
from vit.extensions.recipes.randaugment import RandAugment as RandAugment
from vit.extensions.serving.write import export as export
from vit.extensions.transfer.pseudo import Pseudo as Pseudo
from vit.extensions.tune.tune import tune as tune
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

__version__: str
