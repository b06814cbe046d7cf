"""Label skew from a Dirichlet distribution."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shoal.core.errors import UserError
from shoal.core.setting_types import Above0, Whole
from shoal.data.partition.basic import Rows, enough, label_codes, rows_by_class, whole

# ---- counts --------------------------------------------------------------------------------------
# Tables of how many samples of each class each client gets, [clients, classes].


def even_sizes(total: int, clients: int) -> Rows:
    """Sizes that sum to ``total`` and differ by at most one, the larger ones first."""
    each, extra = divmod(total, clients)
    return np.where(np.arange(clients) < extra, each + 1, each).astype(np.int64)


def balanced_sizes(sizes: Rows) -> Rows:
    """Even sizes with the same sum; the larger ones go to those that are largest already.

    >>> balanced_sizes(np.array([1, 9, 0])).tolist()
    [3, 4, 3]
    """
    out = np.empty(len(sizes), dtype=np.int64)
    out[np.argsort(-sizes, kind="stable")] = even_sizes(int(sizes.sum()), len(sizes))
    return out


def raised_sizes(sizes: Rows, minimum: int) -> Rows:
    """Sizes with the same sum and none below ``minimum``: the largest are cut to a common level.

    >>> raised_sizes(np.array([10, 0, 7, 3]), 2).tolist()
    [8, 2, 7, 3]
    """
    short = int(np.maximum(minimum - sizes, 0).sum())
    low, high = minimum, int(sizes.max())
    while low < high:  # the highest level that frees at least as many as are short
        level = (low + high + 1) // 2
        if np.maximum(sizes - level, 0).sum() >= short:
            low = level
        else:
            high = level - 1
    out = np.clip(sizes, minimum, max(low, minimum))
    spare = int(sizes.sum() - out.sum())
    out[np.flatnonzero(sizes > low)[:spare]] += 1  # cutting to a whole level may free too many
    return out


def move(counts: Rows, sizes: Rows) -> Rows:
    """Move samples until client k has ``sizes[k]``: largest donors and their main class first.

    A client with room is filled before the next one, so it ends with few classes, as a draw with
    a small concentration would have it.

    >>> move(np.array([[6, 2], [0, 0]]), np.array([5, 3])).tolist()
    [[3, 2], [3, 0]]
    """
    out = counts.copy()
    surplus = out.sum(1) - sizes
    donors = iter(np.argsort(-out.sum(1), kind="stable"))
    donor = -1
    for receiver in np.flatnonzero(surplus < 0):
        while surplus[receiver] < 0:
            while donor < 0 or surplus[donor] <= 0:
                donor = next(donors)
            label = out[donor].argmax()
            many = min(out[donor, label], surplus[donor], -surplus[receiver])
            out[donor, label] -= many
            out[receiver, label] += many
            surplus[donor] -= many
            surplus[receiver] += many
    return out


def deal(rows: Sequence[Rows], counts: Rows) -> list[Rows]:
    """Row indices by client: class c's rows are cut at the cumulative counts of c."""
    order = np.concatenate(rows)
    owner = np.concatenate([np.repeat(np.arange(len(counts)), column) for column in counts.T])
    by_client = order[np.lexsort((order, owner))]
    return np.split(by_client, np.cumsum(counts.sum(1))[:-1])


def draw(rows: Sequence[Rows], counts: Rows, rng: np.random.Generator) -> list[Rows]:
    """Row indices by client, drawn uniformly with replacement within each class."""
    drawn = [r[rng.integers(len(r), size=n)] for r, n in zip(rows, counts.sum(0), strict=True)]
    return deal(drawn, counts)


# ---- dirichlet -----------------------------------------------------------------------------------
# Label skew drawn from a Dirichlet distribution.

Floats = NDArray[np.float64]
Form = Literal["class", "client"]


def dirichlet(
    labels: NDArray[Any],
    clients: int,
    *,
    rng: np.random.Generator,
    alpha: Above0 = 0.5,
    form: Form = "class",
    replacement: bool = False,
    balanced: bool = False,
    minimum: Whole = 1,
) -> list[Rows]:
    """Deal rows so that labels are skewed; small ``alpha`` is very skewed, large is close to IID.

    ``form="class"``: for each class c draw ``p_c ~ Dir(alpha 1_K)`` over the K clients and cut the
    class by ``p_c`` (Yurochkin et al.). ``form="client"``: for each client k draw a class prior
    ``q_k ~ Dir(alpha 1_C)``; everybody has the same quota ``n / K`` and fills it by ``q_k``, in
    client order, from any class that still has samples once the wanted ones are used up.

    Parameters
    ----------
    replacement: False deals every row exactly once. True draws a client's rows of a class with
        replacement, so clients may share rows and there may be more clients than samples.
    balanced: equal sizes (they differ by at most one). The client form always has them.
    minimum: the least number of samples of a client; 0 allows empty clients.

    Deviations: the literature redraws all proportions until every client has enough samples,
    which need not end. Here one draw is repaired: samples move from the largest clients (their
    most common class first) to those that have too few, and ``balanced`` evens sizes the same
    way. With replacement nothing moves: short clients draw more from their own distribution.

    References: Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks,
    ICML 2019; Hsu, Qi and Brown, Measuring the Effects of Non-Identical Data Distribution, 2019.

    >>> parts = dirichlet(np.arange(60) % 3, 4, rng=np.random.default_rng(0), alpha=0.1, minimum=5)
    >>> sum(len(p) for p in parts), min(len(p) for p in parts) >= 5
    (60, True)
    """
    codes, classes = label_codes(labels)
    clients, minimum = whole("clients", clients, 1), whole("minimum", minimum, 0)
    if not (isfinite(alpha) and alpha > 0):
        raise UserError(f"alpha must be a finite number above 0, not {alpha!r}.")
    if form not in ("class", "client"):
        raise UserError(f"form must be 'class' or 'client', not {form!r}.")
    if not replacement:
        enough(len(codes), clients, minimum)
    stock = np.bincount(codes, minlength=classes)
    if form == "class":
        shares = log_dirichlet(alpha, classes, clients, rng)
        counts = _class_counts(shares, stock, rng, replacement, balanced, minimum)
    else:
        priors = np.exp(log_dirichlet(alpha, clients, classes, rng))
        counts = _client_counts(priors, stock, rng, replacement, minimum)
    rows = rows_by_class(codes, classes, rng)
    return draw(rows, counts, rng) if replacement else deal(rows, counts)


def log_dirichlet(alpha: float, draws: int, size: int, rng: np.random.Generator) -> Floats:
    """Logarithms of ``draws`` samples of ``Dir(alpha 1_size)``, one per row; never NaN.

    A gamma variable of a small shape underflows to zero, and a row of zeros normalises to NaN.
    With ``G ~ Gamma(alpha + 1)`` and U uniform, ``G U^(1/alpha) ~ Gamma(alpha)``, whose logarithm
    is safe; the row's maximum is taken out before the division by alpha, so it is exactly zero.
    The bounds keep every value finite whatever alpha is.
    """
    gamma = rng.standard_gamma(alpha + 1 if alpha < 1 else alpha, (draws, size))
    logs = np.log(np.clip(gamma, 1e-300, 1e308))
    if alpha < 1:
        logs = alpha * logs - rng.standard_exponential((draws, size))
    logs -= logs.max(1, keepdims=True)
    if alpha < 1:
        logs = np.maximum(logs, -1e300 * alpha) / alpha
    normalised: Floats = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    return normalised


def _class_counts(
    log_shares: Floats,
    stock: Rows,
    rng: np.random.Generator,
    replacement: bool,
    balanced: bool,
    minimum: int,
) -> Rows:
    """Samples of each class for each client, [clients, classes], from shares [classes, clients]."""
    counts = _cut(np.exp(log_shares), stock, rng)
    sizes = counts.sum(1)
    wanted = balanced_sizes(sizes) if balanced else sizes
    if not replacement:
        return move(counts, wanted if balanced else raised_sizes(sizes, minimum))
    # The class distribution of a client, from logarithms: its shares may all be tiny.
    logs = log_shares.T + np.log(stock)
    own = np.exp(logs - logs.max(1, keepdims=True))
    return rng.multinomial(np.maximum(wanted, minimum), own / own.sum(1, keepdims=True))


def _cut(shares: Floats, stock: Rows, rng: np.random.Generator) -> Rows:
    """Cut each class at the cumulative shares; the last client takes what is left.

    Each class is rounded with an offset of its own, which keeps expected counts exact. A common
    one would cut all classes at the same clients when shares are even and clients many.
    """
    offset = rng.random((len(stock), 1))
    ends = np.floor(np.cumsum(shares, 1) * stock[:, None] + offset).astype(np.int64)
    ends = np.minimum(ends, stock[:, None])
    ends[:, -1] = stock
    return np.diff(ends, axis=1, prepend=0).T.copy()


def _client_counts(
    priors: Floats, stock: Rows, rng: np.random.Generator, replacement: bool, minimum: int
) -> Rows:
    """Fill equal quotas by the clients' priors [clients, classes]."""
    quotas = even_sizes(int(stock.sum()), len(priors))
    if replacement:
        return rng.multinomial(np.maximum(quotas, minimum), priors)
    left = stock.copy()
    counts = np.zeros(priors.shape, dtype=np.int64)
    for quota, prior, got in zip(quotas, priors, counts, strict=True):
        # Each turn fills the quota or uses up a class, so there are at most as many as classes.
        while (missing := quota - got.sum()) > 0:
            wish = prior * (left > 0)
            wish = wish if wish.sum() > 0 else left.astype(np.float64)
            taken = np.minimum(rng.multinomial(missing, wish / wish.sum()), left)
            got += taken
            left -= taken
    return counts
