"""Synthetic(alpha, beta): clients that differ in their models and in their inputs."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About

FEATURES, CLASSES = 60, 10

Floats = NDArray[np.float64]
Samples = tuple[NDArray[np.float32], NDArray[np.int64]]


SYNTHETIC = About(
    "synthetic", "Synthetic(alpha, beta)", "as many as drawn", CLASSES, (FEATURES,), "drawn here",
    "Li et al., FedProx, MLSys 2020",
)  # fmt: skip


@source("synthetic", SYNTHETIC)
def synthetic(
    *, alpha: float = 1.0, beta: float = 1.0, clients: int = 30, seed: int = 0
) -> Dataset:
    """Logistic data in 60 features and 10 classes, one group a client.

    Client k has ``y = argmax(W_k x + b_k)`` with ``W_k, b_k ~ N(u_k, 1)``, ``u_k ~ N(0, alpha)``,
    and ``x ~ N(v_k, S)`` with ``S_jj = j^-1.2``, ``v_k ~ N(B_k, 1)``, ``B_k ~ N(0, beta)``.
    Alpha says how much models differ between clients, beta how much inputs do. A client has
    ``lognormal(4, 2) + 50`` samples, the first 90% of them (rounded down) for training.

    Deviations: the second parameter of every normal but S is a standard deviation, as in the
    authors' generator (the paper's notation would allow a variance; 0 and 1 are the same). The
    data of client k is a function of ``(seed, k)``, so more clients leave the first ones as they
    were.

    Reference: Li et al., Federated Optimization in Heterogeneous Networks (FedProx), MLSys 2020,
    section 5.1 and the appendix on data.

    >>> data = synthetic(alpha=0.5, beta=0.5, clients=3)
    >>> data.shape, data.classes, data.group.unique().tolist()
    ((60,), 10, [0, 1, 2])
    """
    _check(alpha, beta, clients, seed)
    samples = [_client(alpha, beta, np.random.default_rng([seed, k])) for k in range(clients)]
    cuts = [int(0.9 * len(y)) for _, y in samples]
    train = [(x[:cut], y[:cut]) for (x, y), cut in zip(samples, cuts, strict=True)]
    test = [(x[cut:], y[cut:]) for (x, y), cut in zip(samples, cuts, strict=True)]
    return Dataset(
        "synthetic", _pool(train), _pool(test), CLASSES, (FEATURES,), _group(train), _group(test)
    )


def _check(alpha: float, beta: float, clients: int, seed: int) -> None:
    for name, value in (("alpha", alpha), ("beta", beta)):
        if not (np.isfinite(value) and value >= 0):
            raise UserError(f"{name} of data set 'synthetic' must be 0 or more, not {value!r}.")
    counts: tuple[tuple[str, object, int], ...] = (("clients", clients, 1), ("seed", seed, 0))
    for name, count, least in counts:
        if not isinstance(count, int) or count < least:
            raise UserError(
                f"{name} of data set 'synthetic' must be a whole number of at least {least}, "
                f"not {count!r}."
            )


def _client(alpha: float, beta: float, rng: np.random.Generator) -> Samples:
    size = int(rng.lognormal(4.0, 2.0)) + 50
    model_mean, input_mean = rng.normal(0.0, alpha), rng.normal(0.0, beta)
    weight: Floats = rng.normal(model_mean, 1.0, (FEATURES, CLASSES))
    bias: Floats = rng.normal(model_mean, 1.0, CLASSES)
    centre: Floats = rng.normal(input_mean, 1.0, FEATURES)
    scale = np.arange(1, FEATURES + 1) ** -0.6  # the square root of the variances j^-1.2
    x = centre + scale * rng.standard_normal((size, FEATURES))
    return x.astype(np.float32), (x @ weight + bias).argmax(1)


def _pool(samples: list[Samples]) -> Pool:
    x = np.concatenate([x for x, _ in samples])
    y = np.concatenate([y for _, y in samples])
    return Pool(torch.from_numpy(x), torch.from_numpy(y))


def _group(samples: list[Samples]) -> torch.Tensor:
    sizes = torch.tensor([len(y) for _, y in samples])
    return torch.arange(len(samples)).repeat_interleave(sizes)
