"""Networks by name: ``build("mlp", (64,), 10)``.

Every model returns ``(logits, features)``, features being the last representation before the
``head``, which is the name of the last layer everywhere. None has dropout or in-place operations,
and none but those built with ``norm: batch`` has running statistics, so each runs under
``functional_call``, ``vmap``, ``grad`` and tracing (with batch normalisation: under ``grad``).
Images may come flat or in the shape the model was built for; texts are rows of token numbers.
"""

from shoal.models.blueprint import Blueprint
from shoal.models.cnn import Cifar10CNN, CifarCNN, EmnistCNN, MnistCNN, SmallCNN, SvhnCNN
from shoal.models.densenet import DenseNet121
from shoal.models.inception import GoogLeNet
from shoal.models.lenet import LeNet5
from shoal.models.linear import Linear
from shoal.models.mlp import MLP
from shoal.models.plain import VGG11, AlexNet
from shoal.models.registry import build, maker, model, names, takes
from shoal.models.resnet import ResNet18, ResNet18ImageNet, ResNet34
from shoal.models.text import CharLSTM, FastText, Transformer, WordLSTM

__all__ = [
    "MLP",
    "VGG11",
    "AlexNet",
    "Blueprint",
    "CharLSTM",
    "Cifar10CNN",
    "CifarCNN",
    "DenseNet121",
    "EmnistCNN",
    "FastText",
    "GoogLeNet",
    "LeNet5",
    "Linear",
    "MnistCNN",
    "ResNet18",
    "ResNet18ImageNet",
    "ResNet34",
    "SmallCNN",
    "SvhnCNN",
    "Transformer",
    "WordLSTM",
    "build",
    "maker",
    "model",
    "names",
    "takes",
]
