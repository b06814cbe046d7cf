"""Networks of Hugging Face, tiny and random, train as they are: with adapters, and by peft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from own_networks import WORDS, Own, OwnWorld, words
from support import play, settings_for
from torch import nn

from shoal import catalog
from shoal.engines.loop import Loop
from shoal.engines.stacked.engine import Stacked
from shoal.models.adapters import Adapters

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


def test_only_adapters_and_the_head_are_in_the_vector() -> None:
    """A and B of two layers of 8 by 8 in each of two blocks, and 3 by 8 with its bias."""
    for build in (adapted, by_peft):
        task = OwnWorld(own=Own(build, words)).own.task(OwnWorld(own=Own(build, words)))
        assert task.layout.size == 4 * 2 * (8 + 8) + 3 * 8 + 3
        assert not torch.equal(*(task.initial(seed).theta for seed in (0, 1)))
