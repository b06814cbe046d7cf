"""An adapted layer computes with ``W + s B A``: as the plain layer with that weight does."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from shoal.core.errors import UserError
from shoal.models.adapters import AdaptedNetwork, Adapters, merged


class Attention(nn.Module):
    """Queries, keys and values of one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mha(x, x, x, need_weights=False)[0]


NETWORKS = {
    "linear": (lambda: nn.Linear(5, 4), (5,)),
    "no bias": (lambda: nn.Linear(5, 4, bias=False), (5,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), (3, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode="reflect"), (3, 8, 8)),
    "wide conv": (lambda: nn.Conv2d(8, 16, 3, dilation=2), (8, 9, 9)),
    "groups": (lambda: nn.Conv2d(4, 8, 3, groups=2), (4, 7, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 4, 4, 4)),
    "attention": (Attention, (6, 8)),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0), (6, 8)),
}
RULES = ("plain", "stack")  # a number as scale; buffers, and what was merged before


def adapted(name: str, rule: str, rank: int = 2) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """A plain network, the same with adapters that do something, and rows."""
    make, shape = NETWORKS[name]
    torch.manual_seed(0)
    plain = make().double()
    own = Adapters(rule, rank, 3.0).put_on(deepcopy(plain))  # type: ignore[arg-type]
    for tensor_name, tensor in own.state_dict().items():
        if tensor_name.endswith(("lora_B", "lora_merged")):
            tensor.normal_()
    return plain, own, torch.randn(4, *shape, dtype=torch.float64)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_as_before_at_first(name: str, rule: str) -> None:
    make, shape = NETWORKS[name]
    plain = make().eval()
    own = Adapters(rule, 2).put_on(deepcopy(plain))  # type: ignore[arg-type]
    x = torch.randn(2, *shape)
    torch.testing.assert_close(own(x), plain(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETWORKS)
def test_it_computes_as_the_plain_network_with_the_merged_weight(
    name: str, rule: str, training: bool
) -> None:
    plain, own, x = adapted(name, rule)
    before = plain.state_dict()
    own.train(training)
    with torch.set_grad_enabled(training):  # torch has a fused way of its own in evaluation
        found = own(x)
        plain.load_state_dict(merged(own, own.state_dict()))
        torch.testing.assert_close(found, plain.train(training)(x))
    assert not torch.allclose(found, make_again(name, before)(x))


def make_again(name: str, state: dict[str, torch.Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name][0]().double()


@pytest.mark.parametrize("name", NETWORKS)
def test_only_adapters_are_trained(name: str) -> None:
    _, own, x = adapted(name, "plain")
    own.train()
    own(x).square().sum().backward()
    moved = {n for n, p in own.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert moved == {n for n, _ in own.named_parameters() if "lora_" in n} != set()


def test_ffa_trains_b_alone() -> None:
    own = Adapters("ffa").put_on(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    trained = [n for n, p in own.named_parameters() if p.requires_grad]
    assert trained == ["0.lora_B", "1.lora_B"]


def test_targets_and_what_is_trained_beside_them() -> None:
    def made(**options: tuple[str, ...]) -> list[str]:
        network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(2, 2), nn.Linear(2, 2))
        own = Adapters(**options).put_on(network)  # type: ignore[arg-type]
        return [n for n, p in own.named_parameters() if p.requires_grad]

    assert made(targets=("conv",)) == ["0.lora_A", "0.lora_B"]
    assert made(targets=("2",), trained=("3.*",)) == ["2.lora_A", "2.lora_B", "3.weight", "3.bias"]
    assert len(made()) == 6
    with pytest.raises(UserError, match="has no layer 'hed'"):
        made(targets=("hed",))
    with pytest.raises(UserError, match="layer '1' is a Flatten"):
        made(targets=("1",))
    with pytest.raises(UserError, match="has no parameter 'body"):
        made(trained=("body.*",))


def test_a_network_without_such_layers_is_refused() -> None:
    with pytest.raises(UserError, match="no linear, convolutional or attention layer"):
        Adapters().put_on(nn.Embedding(3, 2))


def test_two_builders_that_say_the_same_are_equal() -> None:
    assert AdaptedNetwork(Attention, Adapters()) == AdaptedNetwork(Attention, Adapters())
    assert AdaptedNetwork(Attention, Adapters()) != AdaptedNetwork(Attention, Adapters(rank=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "conv1d", "attention", "encoder"])
def test_peft_computes_the_same(name: str) -> None:
    peft = pytest.importorskip("peft", reason="pip install 'shoal[hf]'")
    plain, own, x = adapted(name, "plain")
    layers = [n for n, layer in own.named_modules() if hasattr(layer, "lora_A") and n]
    inner = {f"{n}.out_proj" for n, m in own.named_modules() if hasattr(m, "in_proj_weight")}
    layers = [n for n in layers if n not in inner]  # peft's own business
    for tensor_name, tensor in own.state_dict().items():
        if tensor_name.endswith("out_proj.lora_B"):
            tensor.zero_()  # peft 0.21 counts it twice
    if not layers:
        plain, layers = nn.Sequential(plain), ["0"]
        own = nn.Sequential(own)
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=layers)
    # in training: in evaluation torch's fused encoder passes over peft's adapters
    other = peft.get_peft_model(plain, config).train()
    state = own.state_dict()
    for key, tensor in other.named_parameters():
        if "lora_" in key:
            layer, side = key.removeprefix("base_model.model.").split(".lora_")
            layer = layer.replace("base_layer.", "")
            tensor.data.copy_(state[f"{layer}.lora_{side[0]}"].view(tensor.shape))
    with torch.no_grad():
        torch.testing.assert_close(own(x), other(x))


@pytest.mark.slow
def test_layers_of_gpt_2() -> None:
    """Its linear layers store their weight the other way round."""
    hf = pytest.importorskip("transformers", reason="pip install 'shoal[hf]'")
    size = {"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 1, "n_head": 2}
    torch.manual_seed(0)
    plain = hf.GPT2LMHeadModel(hf.GPT2Config(**size)).eval()
    own = Adapters("plain", 2, targets=("c_attn", "c_fc")).put_on(deepcopy(plain))
    trained = {n.rpartition(".")[0] for n, p in own.named_parameters() if p.requires_grad}
    assert trained == {"transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc"}
    for name, tensor in own.state_dict().items():
        if name.endswith("lora_B"):
            tensor.normal_()
    tokens = torch.arange(6)[None]
    found, before = own(tokens).logits, plain(tokens).logits
    plain.load_state_dict(merged(own, own.state_dict()))
    torch.testing.assert_close(found, plain(tokens).logits)
    assert not torch.allclose(found, before)
