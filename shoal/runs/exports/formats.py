"""Files that other programs read, each read back and compared with the run's own outputs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from shoal.core.errors import UserError
from shoal.core.files import check_writable, private_folder, write_bytes, write_text
from shoal.core.layers.fitting import logits_and_features
from shoal.core.task import Unit, in_unit
from shoal.core.types import Input, split_inputs
from shoal.models.adapters import AdaptedNetwork, Adapters, adapted_layers
from shoal.runs.exports.card import model_card
from shoal.runs.exports.trained import TrainedModel

Format = Literal["safetensors", "onnx", "torch.export", "peft"]
FORMATS: tuple[Format, ...] = get_args(Format)
CLOSE = 1e-5  # of outputs, times the largest of them where that is above 1
CARD = "MODEL_CARD.md"
NEEDS = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "peft": ("peft", "transformers")}
# what reads a file back: rows to outputs
Reader = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exported:
    """What was written, and how far its outputs are from the run's."""

    folder: Path
    files: tuple[str, ...]
    rows: int
    apart: float


def export(trained: TrainedModel, kind: str, out: Path, force: bool = False) -> Exported:
    """Write a model and its card into a folder of their own: all of it, or nothing.

    What was written is read back, and must give the run's outputs on rows of the run's.
    """
    _check(kind, out, force)
    staged = out.parent / f".{out.name}.new"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        private_folder(staged)
        read_back = WRITERS[kind](trained, staged)
        x = trained.rows()
        # two numbers of rows: no file may hold only for the one that it was traced with
        apart = max(_apart(trained, read_back, rows) for rows in (x, x[: max(1, len(x) // 2)]))
        files = tuple(sorted(path.name for path in staged.iterdir()))
        done = Exported(out, (*files, CARD), len(x), apart)
        write_text(staged / CARD, model_card(trained, kind, files, len(x), apart))
        if out.exists():
            shutil.rmtree(out)
        os.rename(staged, out)
        return done
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _check(kind: str, out: Path, force: bool) -> None:
    if kind not in FORMATS:
        raise UserError(f"--to {kind}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    missing = [name for name in NEEDS.get(kind, ()) if find_spec(name) is None]
    if missing:
        extra = "hf" if kind == "peft" else kind
        raise UserError(
            f"--to {kind} needs {' and '.join(missing)}, which is not installed; get it with: "
            f"pip install 'shoal[{extra}]'"
        )
    check_writable(out)
    ours = out.is_dir() and (not any(out.iterdir()) or (out / CARD).exists())
    if out.exists() and not (ours and (force or not any(out.iterdir()))):
        way = "--force replaces it" if ours else "it is no export, so --force does not replace it"
        raise UserError(f"{out} exists, and {way}; give another folder with -o")


@torch.inference_mode()
def _apart(trained: TrainedModel, read_back: Reader, x: Tensor) -> float:
    wanted, found = trained.outputs(x).double(), read_back(x.cpu()).double()
    if wanted.shape != found.shape:
        raise UserError(f"what was written gives {tuple(found.shape)}, not {tuple(wanted.shape)}")
    scale = max(1.0, float(wanted.abs().max()))
    apart = float((wanted - found).abs().max()) / scale
    if not apart <= CLOSE:
        raise UserError(
            f"what was written gives other outputs than the run ({apart:.1e} apart on {len(x)} "
            f"rows, at most {CLOSE:.0e} is allowed), so nothing was kept"
        )
    return apart


class LogitsOnly(nn.Module):
    """A network that answers with its logits alone, whatever else it returns; numbers in the unit
    of the answers that it learnt."""

    def __init__(self, network: nn.Module, inputs: Sequence[Input] = (), unit: Unit = ()) -> None:
        super().__init__()
        self.network, self.inputs, self.unit = network, tuple(inputs), unit

    def forward(self, x: Tensor) -> Tensor:
        one = self.network(**split_inputs(x, self.inputs)) if self.inputs else self.network(x)
        logits: Tensor = logits_and_features(one)[0]
        return in_unit(logits, self.unit) if self.unit else logits


def _loaded(trained: TrainedModel, tensors: Mapping[str, Tensor]) -> LogitsOnly:
    network = trained.network()
    network.load_state_dict(dict(tensors))
    return LogitsOnly(network, trained.task.inputs, trained.task.unit).eval()


# ---- writers -------------------------------------------------------------------------------------
def _safetensors(trained: TrainedModel, folder: Path) -> Reader:
    tensors = {name: t.cpu().contiguous() for name, t in trained.tensors().items()}
    write_bytes(folder / "model.safetensors", save(tensors))
    return _loaded(trained, load_file(folder / "model.safetensors"))


def _traced(trained: TrainedModel) -> tuple[LogitsOnly, Tensor, Any]:
    """The network, rows to trace it with, and that their number may be another."""
    network = _loaded(trained, {n: t.cpu() for n, t in trained.tensors().items()})
    x = trained.rows(3).cpu()
    return network, x, ({0: torch.export.Dim("rows", min=1, max=2**20)},)


def _torch_export(trained: TrainedModel, folder: Path) -> Reader:
    network, x, shapes = _traced(trained)
    with _told("torch.export"), torch.no_grad():
        program = torch.export.export(network, (x,), dynamic_shapes=shapes)
    torch.export.save(program, folder / "model.pt2")
    return torch.export.load(folder / "model.pt2").module()


def _onnx(trained: TrainedModel, folder: Path) -> Reader:
    runtime: Any = import_module("onnxruntime")
    network, x, shapes = _traced(trained)
    file = folder / "model.onnx"
    names: dict[str, Any] = {"input_names": ["x"], "output_names": ["logits"]}
    with _told("onnx"), torch.no_grad():
        torch.onnx.export(
            network,
            (x,),
            file,
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            verbose=False,
            **names,
        )
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda rows: torch.from_numpy(session.run(None, {"x": rows.numpy()})[0])


def _peft(trained: TrainedModel, folder: Path) -> Reader:
    """The adapters alone, and beside them the base that they are for."""
    peft: Any = import_module("peft")

    build, where = trained.task.build, trained.where.path
    if isinstance(network := trained.network(), peft.PeftModel):
        return _peft_of_the_users(trained, network, folder)
    if not isinstance(build, AdaptedNetwork):
        raise UserError(f"--to peft: {where} was run without adapters; write --to safetensors")
    adapters: Adapters = build.adapters
    if adapters.rule == "stack":
        raise UserError("--to peft: rule stack has merged its adapters into the base; write --to "
                        "safetensors")  # fmt: skip
    tensors = {n: t.cpu() for n, t in trained.plan.settings.task.export(trained.model).items()}
    layers = adapted_layers(tuple(tensors))
    scales = {float(tensors.get(f"{p}lora_scale", torch.tensor(adapters.scale))) for p in layers}
    base = network
    plain = {name: tensors[name] for name in base.state_dict()}
    base.load_state_dict(plain)
    write_bytes(folder / "base.safetensors", save(plain))
    config = peft.LoraConfig(
        r=adapters.rank,
        lora_alpha=scales.pop() * adapters.rank,
        # of attention, peft takes the output projection by itself
        target_modules=[
            prefix.rstrip(".")
            for prefix in layers
            if not (prefix.endswith("out_proj.") and prefix.removesuffix("out_proj.") in layers)
        ],
    )
    model = peft.get_peft_model(base, config)
    shapes = {name: t.shape for name, t in peft.get_peft_model_state_dict(model).items()}
    state: dict[str, Tensor] = {}
    for prefix in layers:
        for side in "AB":
            name = _name_in_peft(f"base_model.model.{prefix}", f"lora_{side}.weight", shapes)
            state[name] = tensors[f"{prefix}lora_{side}"].view(shapes[name])
    peft.set_peft_model_state_dict(model, state)
    model.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)  # peft's template of a card
    again = trained.network()
    again.load_state_dict(load_file(folder / "base.safetensors"))
    found = peft.PeftModel.from_pretrained(again, str(folder))
    return LogitsOnly(found, trained.task.inputs).eval()


def _peft_of_the_users(trained: TrainedModel, network: Any, folder: Path) -> Reader:
    """A network that peft has made: its adapters, and the other tensors beside them."""
    tensors = {name: t.cpu() for name, t in trained.tensors().items()}
    network.load_state_dict(tensors)
    network.save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)
    base = {name: t.contiguous() for name, t in tensors.items() if ".lora_" not in name}
    write_bytes(folder / "base.safetensors", save(base))
    again: Any = trained.network()
    again.load_state_dict(load_file(folder / "base.safetensors"), strict=False)
    again.load_adapter(str(folder), "default")
    return LogitsOnly(again, trained.task.inputs).eval()


def _name_in_peft(layer: str, tensor: str, known: Mapping[str, Any]) -> str:
    """What peft calls a tensor of a layer; it puts attention's output projection one deeper."""
    inner = layer.replace("out_proj.", "base_layer.out_proj.") + tensor
    return inner if inner in known else layer + tensor


@contextmanager
def _told(kind: str) -> Iterator[None]:
    """A network that cannot be traced is one sentence."""
    try:
        yield
    except Exception as error:  # tracers say anything
        reason = " ".join(str(error).split())[:300]
        raise UserError(
            f"--to {kind}: the network cannot be traced ({type(error).__name__}: {reason}); write "
            f"--to safetensors"
        ) from error


WRITERS: dict[str, Callable[[TrainedModel, Path], Reader]] = {
    "safetensors": _safetensors,
    "onnx": _onnx,
    "torch.export": _torch_export,
    "peft": _peft,
}
