"""Networks by name: ``build("mlp", (64,), 10)``.

Every model returns ``(logits, features)``, features being the last representation before the
``head``, which is the name of the last layer everywhere. None has dropout, in-place operations or
running statistics, so each runs under ``functional_call``, ``vmap``, ``grad`` and tracing. Inputs
may come flat or in the shape the model was built for.
"""

from shoal.models.cnn import CifarCNN, MnistCNN, SmallCNN
from shoal.models.lenet import LeNet5
from shoal.models.linear import Linear
from shoal.models.mlp import MLP
from shoal.models.registry import build, model, names
from shoal.models.resnet import ResNet18

__all__ = [
    "MLP",
    "CifarCNN",
    "LeNet5",
    "Linear",
    "MnistCNN",
    "ResNet18",
    "SmallCNN",
    "build",
    "model",
    "names",
]
