"""Electricity, weather, gas sensors, outdoor objects."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.types import Pool
from shoal.data.dataset import Dataset, source
from shoal.data.download import About, Remote, locate
from shoal.data.file_formats import npz, table

# ---- streams -------------------------------------------------------------------------------------
# Rows in the order of time, cut into stretches that are the natural clients.

EVERY = 5  # each fifth row is for testing, so that both parts span all of the time


def stream(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    classes: int,
    clients: int | NDArray[Any],
    standardise: bool = True,
) -> Dataset:
    """A data set of rows in the order of time.

    ``clients``: a number of stretches whose lengths differ by at most one, or the stretch of each
    row. Every fifth row is for testing. ``standardise`` takes mean and deviation of the training
    rows.
    """
    if isinstance(clients, np.ndarray):
        group = np.unique(clients, return_inverse=True)[1].astype(np.int64)
    else:
        group = _stretches(name, len(y), clients)
    test = np.arange(len(y)) % EVERY == EVERY - 1
    rows = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    labels = torch.from_numpy(np.ascontiguousarray(y, dtype=np.int64))
    if standardise:
        seen = rows[torch.from_numpy(~test)]
        rows = (rows - seen.mean(0)) / seen.std(0).clamp_min(1e-6)
    pools, groups = [], []
    for chosen in (~test, test):
        at = torch.from_numpy(np.flatnonzero(chosen))
        pools.append(Pool(rows[at], labels[at]))
        groups.append(torch.from_numpy(group)[at])
    shape = (rows.shape[1],)
    return Dataset(name, pools[0], pools[1], classes, shape, groups[0], groups[1])


def _stretches(name: str, rows: int, clients: object) -> NDArray[np.int64]:
    if (
        isinstance(clients, bool)
        or not isinstance(clients, int)
        or not 1 <= clients <= rows // EVERY
    ):
        raise UserError(
            f"clients of data set {name!r} is {clients!r}; it must be a whole number from 1 to "
            f"{rows // EVERY}."
        )
    return np.arange(rows, dtype=np.int64) * clients // rows


# ---- drift streams -------------------------------------------------------------------------------
# Streams that drift by themselves: electricity, weather, gas sensors, outdoor objects.
#
# Rows are in the order of time; the natural clients are stretches of it, oldest first.

LOSING = "https://raw.githubusercontent.com/vlosing/driftDatasets/master/realWorld/"
ELEC2 = About(
    "elec2", "Electricity market of New South Wales", "45,312, each fifth for testing", 2, (6,),
    licence="public",
    reference="Harries, SPLICE-2 Comparative Evaluation: Electricity Pricing, 1999",
    forms={"table": ("elec2.csv.gz",)},
    remotes=(Remote(
        "https://raw.githubusercontent.com/scikit-multiflow/streaming-datasets/master/elec.csv",
        "elec.csv"),),
)  # fmt: skip
NOAA = About(
    "noaa_weather", "NOAA weather: will it rain", "18,159, each fifth for testing", 2, (8,),
    licence="US-government data",
    reference="Elwell and Polikar, IEEE TNN 22(10), 2011",
    forms={"table": ("noaa_weather.csv.gz",)},
    remotes=(Remote(LOSING + "weather/NEweather_data.csv", "NEweather_data.csv"),
             Remote(LOSING + "weather/NEweather_class.csv", "NEweather_class.csv")),
)  # fmt: skip
GAS = About(
    "gas_sensor", "Gas sensor array drift", "13,910 in 10 batches, each fifth for testing", 6,
    (128,),
    licence="CC BY 4.0",
    reference="Vergara et al., Sensors and Actuators B 166, 2012",
    forms={"arrays": ("gas_sensor_drift.npz",)},
    remotes=(Remote(
        "https://archive.ics.uci.edu/static/public/224/gas+sensor+array+drift+dataset.zip",
        "gas_sensor_drift.zip"),),
    folder="gas_sensor_drift",
    compact="6,697 in 8 batches, each fifth for testing",
)  # fmt: skip
OUTDOOR = About(
    "outdoor_objects", "Outdoor objects under changing light", "4,000, each fifth for testing",
    40, (21,),
    licence="none stated; research use",
    reference="Losing, Hammer and Wersing, IJCNN 2015",
    forms={"arrays": ("outdoor_objects.npz",)},
    remotes=(Remote(LOSING + "outdoor/outdoorStream.data", "outdoorStream.data"),
             Remote(LOSING + "outdoor/outdoorStream.labels", "outdoorStream.labels")),
)  # fmt: skip

Floats = NDArray[Any]


def _numbers(path: Path) -> Floats:
    """Numbers apart by blanks or commas, one row a line."""
    rows = [line.replace(",", " ").split() for line in path.read_text().splitlines()]
    return np.array([[float(v) for v in row] for row in rows if row])


@source("elec2", ELEC2)
def elec2(*, clients: int = 10, standardise: bool = True) -> Dataset:
    """Does the price rise (1) against the mean of the last day? Half-hours, 1996 to 1998.

    Six features: the time of day, prices and demands of two states, the transfer between them.
    ``date`` and ``day`` are left out, as in the version of scikit-multiflow that is fetched.
    """
    found = locate(ELEC2)
    header, rows = table(found / ("elec2.csv.gz" if found.form == "table" else "elec.csv"))
    first = header.index("period")
    x = np.array([[float(v) for v in row[first:-1]] for row in rows])
    y = np.array([row[-1] in ("UP", "1") for row in rows])
    return stream("elec2", x, y, 2, clients, standardise)


@source("noaa_weather", NOAA)
def noaa_weather(*, clients: int = 10, standardise: bool = True) -> Dataset:
    """Rain (1) or not (0) on a day, from eight readings; Bellevue, Nebraska, 1949 to 1999."""
    found = locate(NOAA)
    if found.form == "table":
        _, rows = table(found / "noaa_weather.csv.gz")
        values = np.array([[float(v) for v in row] for row in rows])
        x, y = values[:, :-1], values[:, -1]
    else:
        x, label = (_numbers(found / f"NEweather_{kind}.csv") for kind in ("data", "class"))
        y = label.reshape(-1) == label.max()  # rain is the greater of two numbers
    return stream("noaa_weather", x, y, 2, clients, standardise)


@source("gas_sensor", GAS)
def gas_sensor(*, standardise: bool = True) -> Dataset:
    """Six gases by 16 sensors that age over 36 months; a client is a batch, oldest first."""
    found = locate(GAS)
    if found.form == "arrays":
        file = npz(found / "gas_sensor_drift.npz")
        x, y, batch = file["x"], file["y"], file["batch"]
    else:
        x, y, batch = _batches(found / "gas_sensor_drift.zip")
    return stream("gas_sensor", x, y, 6, batch, standardise)


def _batches(path: Path) -> tuple[Floats, Floats, Floats]:
    """Files ``batchN.dat`` with rows ``class[;concentration] 1:v ... 128:v``."""
    xs, ys, numbers = [], [], []
    with zipfile.ZipFile(path) as archive:
        names = {Path(n).name: n for n in archive.namelist()}
        for number in range(1, 11):
            for line in archive.read(names[f"batch{number}.dat"]).decode().splitlines():
                label, *pairs = line.split()
                xs.append([float(pair.split(":")[1]) for pair in pairs])
                ys.append(int(label.split(";")[0]) - 1)
                numbers.append(number)
    return np.array(xs), np.array(ys), np.array(numbers)


@source("outdoor_objects", OUTDOOR)
def outdoor_objects(*, clients: int = 10, standardise: bool = True) -> Dataset:
    """40 objects in a garden, each approached ten times under other light; 21 colour counts."""
    found = locate(OUTDOOR)
    if found.form == "arrays":
        file = npz(found / "outdoor_objects.npz")
        x, y = file["x"], file["y"]
    else:
        x = _numbers(found / "outdoorStream.data")
        y = _numbers(found / "outdoorStream.labels").reshape(-1)
        y = np.unique(y, return_inverse=True)[1]
    return stream("outdoor_objects", x, y, 40, clients, standardise)
