"""Entry points of torch.hub: `vit.create_model` for every architecture, by its name.

`torch.hub.load(REPOSITORY, "vit_b16", pretrained=True, num_classes=0)`
"""

from functools import partial

from vit import create_model, list_models

dependencies = ["torch", "torchvision", "PIL", "safetensors", "filelock"]

globals().update({name: partial(create_model, name) for name in list_models()})
del create_model, list_models, partial
