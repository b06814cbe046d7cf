"""Networks by name.

- registry        the table of models; a blueprint as a value
- small_networks  logistic regression, MLP, the literature's small CNNs, LeNet-5, a U-Net
- resnet          ResNet-18/34, normalisation by name
- deep_cnns       VGG-11, AlexNet, DenseNet-121, GoogLeNet
- text            FastText, LSTMs, a small transformer
- generators      generators and the GAN task
- adapters        low-rank adapters on the layers of any network

Every model of whole rows returns ``(logits, features)``, features being the last representation
before the ``head``, which is the name of the last layer everywhere; those that answer per pixel
(``small_unet``) or position (``each: true``) return logits. None has dropout or in-place
operations, and none but those built with ``norm: batch`` has running statistics, so each runs under
``functional_call``, ``vmap``, ``grad`` and tracing (with batch normalisation: under ``grad``).
Images may come flat or in the shape the model was built for; texts are rows of token numbers.
"""

from shoal.models.deep_cnns import VGG11, AlexNet, DenseNet121, GoogLeNet
from shoal.models.registry import Blueprint, build, maker, model, names, takes
from shoal.models.resnet import ResNet18, ResNet18ImageNet, ResNet34
from shoal.models.small_networks import (
    MLP,
    Cifar10CNN,
    CifarCNN,
    EmnistCNN,
    LeNet5,
    Linear,
    MnistCNN,
    SmallCNN,
    SmallUNet,
    SvhnCNN,
)
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
    "SmallUNet",
    "SvhnCNN",
    "Transformer",
    "WordLSTM",
    "build",
    "maker",
    "model",
    "names",
    "takes",
]
