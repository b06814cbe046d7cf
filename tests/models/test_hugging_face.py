"""Networks of Hugging Face, tiny and random, train as they are: with adapters, and by peft."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from own_networks import WORDS, Own, OwnWorld, words
from safetensors.torch import load_file
from support import play, settings_for
from torch import nn

from shoal import catalog
from shoal.config import from_mapping
from shoal.core.errors import UserError
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.models import model
from shoal.models.adapters import Adapters
from shoal.runs.exports.formats import export
from shoal.runs.exports.trained import read_model
from shoal.runs.run import DurableRun

pytestmark = pytest.mark.slow
WHY = "pip install 'shoal[hf]'"


def bert() -> nn.Module:
    """Its forward answers with an object that has ``logits``; its dropout draws."""
    hf: Any = pytest.importorskip("transformers", reason=WHY)
    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    made: nn.Module = hf.BertForSequenceClassification(config)
    return made


def adapted() -> nn.Module:
    own = Adapters("plain", 2, targets=("query", "value"), trained=("classifier.*",))
    return own.put_on(bert())


def by_peft() -> nn.Module:
    peft: Any = pytest.importorskip("peft", reason=WHY)
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["query", "value"], lora_dropout=0.1
    )
    made: nn.Module = peft.get_peft_model(bert(), config)
    return made


@pytest.mark.parametrize("build", [bert, adapted, by_peft])
def test_engines_agree(build: Callable[[], nn.Module]) -> None:
    world = OwnWorld(own=Own(build, words))
    task = world.own.task(world)
    settings = settings_for(catalog.scaffold(), world, task)
    one, other = (play(settings, engine, 2)[0].models[0] for engine in (Loop(), Stacked()))
    assert float((one.theta - other.theta).norm() / one.theta.norm()) < 1e-9
    assert float((one.theta - task.initial(3).theta).norm()) > 1e-3


def test_what_peft_has_put_there_is_pefts() -> None:
    made = Adapters("ffa").put_on(by_peft())
    trained = [name for name, p in made.named_parameters() if p.requires_grad]
    assert any(".lora_B." in name for name in trained)
    assert not any(".lora_A." in name for name in trained)
    for own, sentence in (
        (Adapters("svd"), "svd needs adapters of shoal's own"),
        (Adapters(rank=4), "with ranks, alpha and targets of its own"),
    ):
        with pytest.raises(UserError, match=sentence):
            own.put_on(by_peft())


def test_a_run_of_pefts_network_goes_home(tmp_path: Path) -> None:
    """Its adapters, read by peft into a network of the same base, answer as the run did."""
    peft: Any = pytest.importorskip("peft", reason=WHY)

    def net(shape: tuple[int, ...], classes: int) -> nn.Module:
        plain = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["0", "2"])
        return peft.get_peft_model(plain, config)  # type: ignore[no-any-return]

    model("net_by_peft")(net)
    world = {"name": "static", "members": 3, "rounds": 2, "partition": "iid"}
    config = from_mapping({"model": "net_by_peft", "world": world, "local": {"lr": 0.1}})
    DurableRun.create(tmp_path / "run", config).play()
    trained = read_model(tmp_path / "run")
    export(trained, "peft", tmp_path / "out")
    base = load_file(tmp_path / "out" / "base.safetensors")
    plain = nn.Sequential(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    names = {
        name: name.replace("base_model.model.", "").replace(".base_layer", "") for name in base
    }
    plain.load_state_dict({names[name]: tensor for name, tensor in base.items()})
    again = peft.PeftModel.from_pretrained(plain, tmp_path / "out")
    x = torch.randn(5, 64)
    torch.testing.assert_close(again(x), trained.outputs(x), atol=1e-5, rtol=1e-5)


def test_only_adapters_and_the_head_are_in_the_vector() -> None:
    """A and B of two layers of 8 by 8 in each of two blocks, and 3 by 8 with its bias."""
    for build in (adapted, by_peft):
        task = OwnWorld(own=Own(build, words)).own.task(OwnWorld(own=Own(build, words)))
        assert task.layout.size == 4 * 2 * (8 + 8) + 3 * 8 + 3
        assert not torch.equal(*(task.initial(seed).theta for seed in (0, 1)))
