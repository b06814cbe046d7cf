"""Tables as users bring them, made by seed, and what a pooled linear model reaches on each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, r2_score
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

Frame = pd.DataFrame


def dates(draw: np.random.Generator) -> Frame:
    """Late or not, by weekday and month; amounts of very different sizes."""
    n = 2400
    day = pd.Timestamp("2025-01-01") + pd.to_timedelta(draw.integers(0, 500, n), "D")
    income = draw.lognormal(10, 0.5, n)
    score = (day.weekday >= 5) * 1.5 - (day.month < 4) * 1.2 + np.log(income) - 10
    late = score + draw.normal(0, 0.7, n) > 0.3
    branch = draw.choice(["north", "south", "east", "west", "mid"], n)
    return Frame({"branch": branch, "opened": day.strftime("%d.%m.%Y"), "income": income.round(2),
                  "age": draw.integers(18, 80, n), "late": np.where(late, "yes", "no")}
    )  # fmt: skip


GOOD = [
    "kind",
    "quick",
    "clean",
    "friendly",
    "helpful",
    "great",
    "lovely",
    "calm",
    "honest",
    "warm",
]
BAD = [
    "rude",
    "slow",
    "dirty",
    "broken",
    "noisy",
    "awful",
    "cold",
    "late",
    "careless",
    "poor",
]
PLAIN = [
    "the",
    "room",
    "was",
    "staff",
    "and",
    "a",
    "table",
    "food",
    "with",
    "very",
    "today",
    "again",
    "we",
    "came",
    "for",
    "it",
]


def texts(draw: np.random.Generator) -> Frame:
    """What people wrote, and how many stars they gave."""
    n, rows = 1500, []
    for stars in draw.integers(1, 4, n):
        chosen = [*draw.choice(PLAIN, 8), *draw.choice(GOOD, stars), *draw.choice(BAD, 4 - stars)]
        rows.append((" ".join(draw.permutation(chosen)), f"{stars} stars"))
    shop = [f"shop {i}" for i in draw.integers(0, 12, n)]
    reviews, stars = ([row[i] for row in rows] for i in (0, 1))
    price = draw.normal(20, 5, n).round(1)
    return Frame({"shop": shop, "review": reviews, "price": price, "label": stars})


def amounts(draw: np.random.Generator) -> Frame:
    """A price in thousands, some cells empty, a category, an empty and a constant column."""
    n = 2000
    area, year = draw.normal(90, 30, n), draw.integers(1950, 2024, n)
    kind = draw.choice(["flat", "house", "villa"], n)
    price = 3000 * area + 900 * (year - 1950) + 80_000 * (kind == "villa") + draw.normal(0, 3e4, n)
    area = np.where(draw.random(n) < 0.03, np.nan, area)
    return Frame({"id": np.arange(n) + 10_000, "agency_site": draw.integers(1, 9, n), "area": area,
                  "year": year, "kind": kind, "land": "none", "note": np.nan,
                  "price": price.round(0)})  # fmt: skip


def sites(draw: np.random.Generator) -> Frame:
    """40 sites of very unequal size, each with more of some class; three classes."""
    sizes = np.maximum(6, (4000 / np.arange(1, 41) ** 1.1).astype(int) // 3)
    site = np.repeat(np.arange(40), sizes)
    lean = draw.normal(0, 1.0, (40, 3))
    x = draw.normal(0, 1, (len(site), 12))
    logits = 1.5 * x @ draw.normal(0, 1, (12, 3)) + lean[site]
    y = (logits + draw.gumbel(0, 1, logits.shape)).argmax(1)
    columns = {f"lab_{i}": x[:, i] * 10.0**i for i in range(12)}
    return Frame({"hospital": [f"H{s:02d}" for s in site], **columns, "diagnosis": np.array(
        ["flu", "cold", "none"])[y]}).sample(frac=1, random_state=0)  # fmt: skip


def labels(draw: np.random.Generator) -> Frame:
    """Three labels, any of which a row may have."""
    n = 1800
    x = draw.normal(0, 1, (n, 6))
    y = (x @ draw.normal(0, 1.5, (6, 3)) + draw.normal(0, 1, (n, 3)) > 0.4).astype(int)
    columns = {f"sensor {i}": 100 + 7 * x[:, i] for i in range(6)}
    named = {f"tag_{name}": y[:, i] for i, name in enumerate(("sport", "music", "news"))}
    return Frame({"device": draw.choice([f"d{i}" for i in range(7)], n), **columns, **named})


def visits(draw: np.random.Generator) -> Frame:
    """Visits to seven clinics over a year: who comes back within a month (examples/visits.csv)."""
    n = 1400
    clinics = ["Ashby", "Birch Lane", "Castle", "Docks", "Elm Street", "Fairview", "Greenhill"]
    clinic = draw.choice(7, n, p=[0.3, 0.2, 0.16, 0.13, 0.1, 0.07, 0.04])
    start = np.array([0, 0, 60, 0, 120, 0, 200])[clinic]
    day = start + (draw.random(n) * (364 - start)).astype(int)
    age, pressure = draw.integers(1, 95, n), draw.normal(125, 15, n).round(0)
    reason = draw.choice(["cough", "back pain", "check-up", "injury", "diabetes"], n)
    score = 0.04 * (age - 50) + 0.05 * (pressure - 125) + 1.8 * (reason == "diabetes")
    score += -1.2 * (reason == "check-up") + 0.8 * np.cos(2 * np.pi * day / 365) - 0.3
    returned = np.where(score + draw.logistic(0, 0.7, n) > 0, "yes", "no")
    when = pd.Timestamp("2025-01-01") + pd.to_timedelta(day, "D")
    return Frame({"visit": np.arange(n) + 1001, "clinic": np.array(clinics)[clinic],
                  "date": when.strftime("%Y-%m-%d"), "age": age,
                  "pressure": np.where(draw.random(n) < 0.04, np.nan, pressure), "reason": reason,
                  "returned": returned}).sort_values(["date", "visit"])  # fmt: skip


TABLES: dict[str, Callable[[np.random.Generator], Frame]] = {
    "dates": dates, "texts": texts, "amounts": amounts, "sites": sites, "labels": labels
}  # fmt: skip


def written(name: str, folder: Path) -> Path:
    """The table as a CSV file, its rows numbered."""
    frame = TABLES[name](np.random.default_rng(7))
    frame.insert(0, "row", np.arange(len(frame)))
    frame.to_csv(folder / f"{name}.csv", index=False)
    return folder / f"{name}.csv"


def pooled(name: str, path: Path, train: Any, test: Any) -> float:
    """Percent that a linear model of scikit-learn reaches on the rows ``test``, all members' rows
    ``train`` together: accuracy, macro F1 (labels), 100 x R2 (amounts)."""
    frame = pd.read_csv(path)
    scaled, kinds = StandardScaler(), OneHotEncoder(handle_unknown="ignore")
    if name == "dates":
        day = pd.to_datetime(frame["opened"], format="%d.%m.%Y")
        frame = frame.assign(weekday=day.dt.weekday, month=day.dt.month)
        columns = make_column_transformer(
            (scaled, ["income", "age"]), (kinds, ["weekday", "month"])
        )
    elif name == "texts":
        columns = make_column_transformer((scaled, ["price"]), (TfidfVectorizer(), "review"))
    elif name == "amounts":
        frame["area"] = frame["area"].fillna(frame["area"].mean())
        columns = make_column_transformer((scaled, ["area", "year"]), (kinds, ["kind"]))
    else:
        word = "lab_" if name == "sites" else "sensor"
        columns = make_column_transformer((scaled, [c for c in frame if c.startswith(word)]))
    answers = [c for c in frame if c.startswith("tag_")] or frame.columns[
        [c in ("late", "label", "price", "diagnosis") for c in frame]
    ][-1]
    y = frame[answers]
    plain: Any = LinearRegression() if name == "amounts" else LogisticRegression(max_iter=2000)
    model = make_pipeline(columns, MultiOutputClassifier(plain) if name == "labels" else plain)
    found = model.fit(frame.iloc[train], y.iloc[train]).predict(frame.iloc[test])
    if name == "labels":
        return 100 * float(f1_score(y.iloc[test], found, average="macro"))
    score = r2_score if name == "amounts" else accuracy_score
    return 100 * float(score(y.iloc[test], found))
