"""Which model of a run, as a plain network with its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from shoal.config import load_run, read
from shoal.config.build import RunPlan, build
from shoal.config.own_names import import_own
from shoal.core.errors import UserError
from shoal.core.layers.fitting import materialise
from shoal.core.rng import seeded
from shoal.core.task import ModuleTask
from shoal.core.types import Batch, ClientData, Model
from shoal.engines.loop import Loop
from shoal.models.adapters import AdaptedNetwork, merged
from shoal.rounds.evaluate import served
from shoal.rounds.state import Federation
from shoal.runs import checkpoint
from shoal.runs.directory import RunDir
from shoal.runs.origin import check_code, check_origin, read_origin
from shoal.runs.run import config_hash, hash_of_0_1

Say = Callable[[str], None]
ROWS = 256  # that outputs are compared on


@dataclass(frozen=True)
class TrainedModel:
    """A model of a run: what it predicts is ``outputs``; ``who`` says whose it is."""

    where: RunDir
    plan: RunPlan
    model: Model
    who: str
    rounds: int  # that went in

    @property
    def task(self) -> ModuleTask:
        """The network's own task, without what a method puts around it."""
        task = self.plan.settings.task
        found = getattr(task, "inner", task)
        if not isinstance(found, ModuleTask):
            raise UserError(f"{self.where.path}: its model is no network, so nothing is exported")
        return found

    def tensors(self) -> dict[str, Tensor]:
        """By the names of the plain network; adapters are merged into its weights."""
        tensors = self.plan.settings.task.export(self.model)
        if isinstance(self.task.build, AdaptedNetwork):
            return merged(self.task.module, tensors)
        return tensors

    def network(self) -> nn.Module:
        """The plain network as its author wrote it, in evaluation mode, without tensors of the
        run's."""
        make = self.task.build
        make = make.make if isinstance(make, AdaptedNetwork) else make
        with seeded(0):
            network = make()
            materialise(network, self.task.sample, self.task.inputs)
        return network.to(self.task.dtype).cpu().eval()

    @torch.inference_mode()
    def outputs(self, x: Tensor) -> Tensor:
        """What the run itself predicts."""
        task = self.plan.settings.task
        batch = Batch(x, torch.zeros(len(x), dtype=torch.int64, device=x.device))
        return task.forward(self.model.theta, batch, self.model.stats, False).logits.cpu()

    def rows(self, most: int = ROWS) -> Tensor:
        """Some of the run's own test rows, else training rows; they may be few."""
        world, last = self.plan.world, max(0, self.rounds - 1)
        sets = [*world.tests(last).values()]
        sets += [world.train(int(m), last) for m in world.at(last).members[:1]]
        for data in sets:
            if len(data):
                return _some(data, most)
        raise UserError(f"{self.where.path}: there are no rows to compare outputs on")


def _some(data: ClientData, most: int) -> Tensor:
    places = torch.linspace(0, len(data) - 1, min(most, len(data))).long()
    return data.pool.x[data.rows[places.to(data.rows.device)]]


def read_model(
    directory: Path,
    member: int | None = None,
    cluster: int | None = None,
    changes: Sequence[str] = (),
    say: Say = lambda text: None,
    accept_code: bool = False,
) -> TrainedModel:
    """The model of a run: the global one, a cluster's, or the one that predicts for a member.

    A run that is not finished gives what its newest checkpoint has. Data and the user's own code
    must be those it was trained with.
    """
    where = RunDir(directory)
    where.check_run()
    if where.is_real:
        raise UserError(
            f"{directory} is the run of a real federation, whose rows are its members'; "
            f"{where.model.name} in it has the global model's tensors by name"
        )
    if member is not None and cluster is not None:
        raise UserError("--member and --cluster: name one of them")
    written, _ = read(where.config)
    config, old = load_run(where.config, changes), read_origin(where.origin)
    check_code(where, old, config, accept_code)
    import_own(config)
    plan = build(config)
    check_origin(where, old, plan, say, accept_code)
    known = {config_hash(written), hash_of_0_1(written), *([old.config_0_1] if old else [])}
    saved = checkpoint.load(where.checkpoint, known, plan.config.device)
    if saved is None:
        return _from_file(where, plan, member, cluster)
    if saved.skipped:
        say(saved.skipped)
    federation = saved.federation
    if not federation.round:
        raise UserError(
            f"{directory} has finished no round yet; go on with: shoal resume {directory}"
        )
    if federation.round < plan.world.rounds:
        say(f"{directory} has finished {federation.round} of {plan.world.rounds} rounds")
    model, who = _chosen(plan, federation, member, cluster, say)
    return TrainedModel(where, plan, model, who, federation.round)


def _chosen(
    plan: RunPlan, federation: Federation, member: int | None, cluster: int | None, say: Say
) -> tuple[Model, str]:
    settings, moment = plan.settings, plan.world.at(federation.round - 1)
    count = len(federation.models)
    if cluster is not None:
        if not 0 <= cluster < count:
            has = "one global model" if count == 1 else f"models 0 to {count - 1}"
            raise UserError(f"--cluster {cluster}: the run has {has}")
        return federation.models[cluster], f"cluster {cluster} of {count}"
    if member is not None:
        if member not in moment.members and member not in federation.store.clients():
            raise UserError(f"--member {member}: no member of that name was in the run at its end")
        if settings.method.only("model_for") is None:
            say(
                f"{settings.method.name} trains no personal models; every member has the global one"
            )
        return served(federation, settings, moment, member, Loop()), f"member {member}"
    if count > 1 and settings.method.only("model_for") is None:
        raise UserError(f"the run has {count} models; name one with --cluster 0 to {count - 1}")
    return served(federation, settings, moment, None, Loop()), "the global model"


def _from_file(
    where: RunDir, plan: RunPlan, member: int | None, cluster: int | None
) -> TrainedModel:
    """The global model of a directory without a checkpoint, as ``Result.save`` writes it."""
    if member is not None or cluster is not None:
        raise UserError(f"{where.path} has no checkpoint, which is where models of members are")
    try:
        tensors = load_file(where.model)
    except (OSError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{where.model} cannot be read ({reason})") from None
    task = plan.settings.task
    names = (*task.layout.names, *task.stats_layout.names)
    if not isinstance(task, ModuleTask) or not set(names) <= set(tensors):
        raise UserError(f"{where.model} is not the model of {where.config}")
    model = task.pack(tensors).to(plan.config.device)
    return TrainedModel(where, plan, model, "the global model", plan.world.rounds)
