"""FastText, LSTMs, a small transformer."""

from __future__ import annotations

import warnings
from math import sqrt
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from shoal.core.errors import UserError
from shoal.models.registry import Shape, model, positive

# ---- recurrent -----------------------------------------------------------------------------------
# An LSTM out of plain operations, so that function transforms and stacking see through it.


class LSTMCell(nn.Module):
    """The weights of one layer; gates in the order input, forget, candidate, output.

    One bias vector, as in the paper (``nn.LSTM`` has two that only ever act as their sum).
    """

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        bound = 1.0 / sqrt(width)
        self.input = nn.Parameter(torch.empty(4 * width, before).uniform_(-bound, bound))
        self.hidden = nn.Parameter(torch.empty(4 * width, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(4 * width).uniform_(-bound, bound))

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """States [rows, length, width]; a place that is not real keeps the state before it."""
        rows, length, _ = x.shape
        given = x @ self.input.T + self.bias
        state = given.new_zeros(rows, self.hidden.shape[1])
        memory = state
        out = []
        for place in range(length):
            into, keep, candidate, show = (given[:, place] + state @ self.hidden.T).chunk(4, 1)
            fresh = torch.sigmoid(keep) * memory + torch.sigmoid(into) * torch.tanh(candidate)
            seen = real[:, place].unsqueeze(1)
            state = torch.where(seen, torch.sigmoid(show) * torch.tanh(fresh), state)
            memory = torch.where(seen, fresh, memory)
            out.append(state)
        return torch.stack(out, 1)


class LSTM(nn.Module):
    """Layers of cells; returns the states of the top layer. Padding is skipped, so the last one is
    that after the last token.

    Reference: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997 (with forget gates).
    """

    def __init__(self, before: int, width: int, layers: int) -> None:
        super().__init__()
        sizes = [before, *[width] * (layers - 1)]
        self.cells = nn.ModuleList(LSTMCell(size, width) for size in sizes)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        for cell in self.cells:
            x = cell(x, real)
        return x


# ---- text ----------------------------------------------------------------------------------------
# Networks for sequences of token numbers; number 0 is padding. With ``each`` they answer at every
# position, which sees what came before it and itself: the next token of each.

# What a method does around its steps is mapped over clients, here one: there is nothing to lose.
warnings.filterwarnings("ignore", "There is a performance drop.*aten::_embedding_bag")


def sequence(name: str, shape: Shape) -> int:
    """The length of a sample, which must be one row of token numbers."""
    if len(shape) != 1:
        raise UserError(f"model {name!r} needs rows of token numbers, not samples of {shape}.")
    return shape[0]


def embedding(name: str, vocabulary: int, width: int) -> nn.Embedding:
    positive(name, "vocabulary", (vocabulary,))
    positive(name, "width", (width,))
    return nn.Embedding(vocabulary, width)


@model("fasttext")
class FastText(nn.Module):
    """The mean of the embeddings of a text's tokens, then the head.

    ``vocabulary`` must be that of the data. 300 wide as in the code of the dynamic-arrival paper
    (3,001,204 parameters with 10,000 tokens and 4 classes).

    Deviations: no bags of n-grams and no hierarchical softmax. Padding is left out of the mean.

    Reference: Joulin et al., Bag of Tricks for Efficient Text Classification, EACL 2017.
    """

    one_by_one: ClassVar[bool] = True

    def __init__(self, shape: Shape, classes: int, *, vocabulary: int = 10_000,
                 width: int = 300) -> None:  # fmt: skip
        super().__init__()
        sequence("fasttext", shape)
        self.embed = embedding("fasttext", vocabulary, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # one pass that never writes out [rows, length, width]
        features = embedding_bag(x, self.embed.weight, mode="mean", padding_idx=0)
        return self.head(features), features


def mean_of(values: Tensor, x: Tensor) -> Tensor:
    """Mean of [rows, length, width] over the places where ``x`` is not padding."""
    real = (x != 0).to(values.dtype).unsqueeze(-1)
    return (values * real).sum(1) / real.sum(1).clamp_min(1.0)


@model("char_lstm")
class CharLSTM(nn.Module):
    """Embedding of 8, two LSTM layers of 256, the head on the last state: the next character.

    820,522 parameters with 90 characters, as in Reddi et al., Adaptive Federated Optimization,
    ICLR 2021, appendix C.
    """

    def __init__(self, shape: Shape, classes: int, *, vocabulary: int = 90, width: int = 8,
                 hidden: int = 256, layers: int = 2, each: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.each = each
        sequence("char_lstm", shape)
        positive("char_lstm", "hidden", (hidden, layers))
        self.embed = embedding("char_lstm", vocabulary, width)
        self.lstm = LSTM(width, hidden, layers)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        states = self.lstm(self.embed(x), x != 0)
        features = states if self.each else states[:, -1]
        logits: Tensor = self.head(features)
        return logits if self.each else (logits, features)


@model("word_lstm")
class WordLSTM(nn.Module):
    """Embedding of 96, one LSTM layer of 670, a linear layer of 96, the head: the next word.

    4,050,748 parameters with 10,004 words, as in Reddi et al., ICLR 2021, appendix C.
    """

    def __init__(self, shape: Shape, classes: int, *, vocabulary: int = 10_000, width: int = 96,
                 hidden: int = 670, each: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.each = each
        sequence("word_lstm", shape)
        positive("word_lstm", "hidden", (hidden,))
        self.embed = embedding("word_lstm", vocabulary, width)
        self.lstm = LSTM(width, hidden, 1)
        self.project = nn.Linear(hidden, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        states = self.lstm(self.embed(x), x != 0)
        features = self.project(states if self.each else states[:, -1])
        logits: Tensor = self.head(features)
        return logits if self.each else (logits, features)


class Encoder(nn.Module):
    """Attention and a layer, each added and normalised after (the form of BERT), no dropout."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attend = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.grow = nn.Linear(width, hidden)
        self.shrink = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.attend(x).reshape(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        share = torch.softmax(scores.masked_fill(hidden, -1e9), -1)
        mixed = (share @ value).transpose(1, 2).reshape(rows, length, width)
        x = self.norm1(x + self.mix(mixed))
        out: Tensor = self.norm2(x + self.shrink(nn.functional.gelu(self.grow(x))))
        return out


@model("transformer")
class Transformer(nn.Module):
    """Embeddings of tokens and places, ``layers`` encoders, mean over the text, the head.

    The size of a layer is that of ``nn.TransformerEncoderLayer(width, heads, hidden)``.
    ``vocabulary`` must be that of the data.

    Reference: Vaswani et al., Attention Is All You Need, NeurIPS 2017.
    """

    def __init__(self, shape: Shape, classes: int, *, vocabulary: int = 10_000, width: int = 128,
                 heads: int = 4, hidden: int = 256, layers: int = 2,
                 each: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.each = each
        self.length = length = sequence("transformer", shape)
        positive("transformer", "heads, hidden or layers", (heads, hidden, layers))
        if width % heads:
            raise UserError(f"heads of model 'transformer' must divide its width {width}, but "
                            f"{heads} does not.")  # fmt: skip
        self.embed = embedding("transformer", vocabulary, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        nn.init.normal_(self.place, std=0.02)
        self.encoders = nn.ModuleList(Encoder(width, heads, hidden) for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        values = self.embed(x) + self.place
        hidden = (x == 0).reshape(x.shape[0], 1, 1, -1)
        if self.each:
            later = torch.ones(self.length, self.length, dtype=torch.bool, device=x.device).triu(1)
            hidden = hidden | later
        for encoder in self.encoders:
            values = encoder(values, hidden)
        features = values if self.each else mean_of(values, x)
        logits: Tensor = self.head(features)
        return logits if self.each else (logits, features)
