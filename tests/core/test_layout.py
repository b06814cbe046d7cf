"""Names and shapes inside one flat vector."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.core.layout import Layout

shape_lists = st.lists(st.lists(st.integers(1, 4), max_size=5).map(tuple), max_size=6)
quick = settings(max_examples=80, deadline=None)


def layout_of(shapes: list[tuple[int, ...]]) -> Layout:
    return Layout(tuple(f"t{i}.weight" for i in range(len(shapes))), tuple(shapes))


@given(shape_lists)
@quick
def test_vector_to_tensors_and_back(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    vector = torch.arange(float(layout.size))
    tensors = layout.unflatten(vector)
    assert [tuple(t.shape) for t in tensors.values()] == shapes
    assert torch.equal(layout.flatten(tensors), vector)


@given(shape_lists)
@quick
def test_tensors_to_vector_and_back(shapes: list[tuple[int, ...]]) -> None:
    tensors = {f"t{i}": torch.randn(shape) for i, shape in enumerate(shapes)}
    layout = Layout.of(tensors)
    again = layout.unflatten(layout.flatten(tensors))
    assert layout.size == sum(map(prod, shapes)) and list(again) == list(tensors)
    assert all(torch.equal(again[name], tensors[name]) for name in tensors)


@given(shape_lists)
@quick
def test_slices_tile_the_vector(shapes: list[tuple[int, ...]]) -> None:
    layout = layout_of(shapes)
    covered = [i for where in layout.slices.values() for i in range(where.start, where.stop)]
    assert covered == list(range(layout.size))


def test_tensors_are_views_and_kernels_are_channels_last() -> None:
    layout = Layout(("conv", "bias"), ((8, 3, 5, 4), (8,)))
    vector = torch.arange(float(layout.size))
    kernel = layout.unflatten(vector)["conv"]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    assert kernel.untyped_storage().data_ptr() == vector.untyped_storage().data_ptr()
    # Entry (o, c, h, w) stands at ((o * H + h) * W + w) * C + c.
    assert kernel[1, 2, 3, 0] == ((1 * 5 + 3) * 4 + 0) * 3 + 2


def test_a_contiguous_kernel_survives_storage_with_channels_last() -> None:
    kernel = torch.randn(4, 3, 2, 2)
    layout = Layout.of({"k": kernel})
    for given_kernel in (kernel, kernel.to(memory_format=torch.channels_last)):
        assert torch.equal(layout.unflatten(layout.flatten({"k": given_kernel}))["k"], kernel)


def test_the_gradient_through_a_layout_is_that_of_its_tensors() -> None:
    layout = Layout(("k", "b"), ((2, 3, 2, 2), (3,)))
    factors = {"k": torch.randn(2, 3, 2, 2), "b": torch.randn(3)}

    def inner(vector: Tensor) -> Tensor:
        tensors = layout.unflatten(vector)
        return torch.stack([(tensors[n] * factors[n]).sum() for n in layout.names]).sum()

    slope = torch.func.grad(inner)(torch.zeros(layout.size))
    assert torch.equal(slope, layout.flatten(factors))


def test_masks_by_prefix_and_by_predicate() -> None:
    layout = Layout(("body.weight", "body.bias", "head.weight"), ((2, 2), (2,), (3,)))
    by_prefix = layout.mask(["head"])
    assert by_prefix.tolist() == [False] * 6 + [True] * 3
    assert torch.equal(
        layout.mask(lambda name: name.endswith("bias")).nonzero()[:, 0], torch.tensor([4, 5])
    )
    assert not layout.mask([]).any() and layout.mask(["body", "head"]).all()


def test_a_missing_name_is_an_error_and_an_empty_layout_is_none() -> None:
    with pytest.raises(KeyError, match="b"):
        Layout(("a", "b"), ((1,), (1,))).flatten({"a": torch.zeros(1)})
    empty = Layout((), ())
    assert empty.size == 0 and empty.unflatten(torch.zeros(0)) == {}
    assert empty.flatten({}).shape == (0,) and empty.mask(["x"]).shape == (0,)


def test_narrow_kernels_stay_plain() -> None:
    layout = Layout(("few_out", "few_in"), ((4, 16, 3, 3), (8, 4, 1, 1)))
    views = layout.unflatten(torch.arange(float(layout.size)))
    assert all(kernel.is_contiguous() for kernel in views.values())
