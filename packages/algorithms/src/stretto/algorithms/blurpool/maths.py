"""Binomial filters, smoothing, and a maximum that is smoothed before it is subsampled."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch.nn import functional as F

__all__ = ["EdgeMode", "Size2d", "as_pair", "binomial_filter", "blur_2d", "blurmax_pool2d"]

Size2d: TypeAlias = int | tuple[int, ...]
EdgeMode: TypeAlias = Literal["reflect", "replicate", "zeros"]


def binomial_filter(
    size: Size2d = 3, *, device: torch.device | None = None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return the outer product of two binomial filters that sum to 1: ``[1, 2, 1] / 4`` for 3 taps.

    Args:
        size: Taps along height and width, each 1 (no blur) to 7. Default: 3.
        device: Where. Default: the CPU.
        dtype: Floating type. All values are exact in bfloat16 and above.

    Returns:
        A tensor of shape (1, 1, height, width).

    Raises:
        ValueError: The size is out of range.
    """
    height, width = (_binomial(taps) for taps in as_pair(size))
    rows = torch.tensor(height, device=device, dtype=dtype)
    columns = torch.tensor(width, device=device, dtype=dtype)
    return (rows[:, None] * columns[None, :])[None, None]


def blur_2d(
    input: torch.Tensor,
    channels: int = -1,
    stride: Size2d = 1,
    filter: torch.Tensor | None = None,
    *,
    padding: Size2d | None = None,
    padding_mode: EdgeMode = "reflect",
) -> torch.Tensor:
    """Smooth every channel and keep each `stride`-th pixel.

    Args:
        input: Images, (N, C, H, W) or (C, H, W).
        channels: C if you want it checked. Default: -1, any.
        stride: Step along height and width. Default: 1.
        filter: (H', W'), (1, 1, H', W') or (C, 1, H', W'). Default: three binomial taps each way.
        padding: Pixels added on each side. Default: what keeps the size at stride 1.
        padding_mode: What to add. ``reflect`` (default, as in the paper's code) and ``replicate``
            leave a constant image constant; ``zeros`` darkens the borders, as Composer does. An
            axis too short to be reflected is replicated.

    Returns:
        The smoothed images, ``ceil(H / stride)`` high with the default padding.

    Raises:
        ValueError: `channels` or the filter's shape don't fit the input.
    """
    count = input.size(-3)
    if channels > 0 and channels != count:
        raise ValueError(f"channels={channels}, but the input has {count} channels.")
    if filter is None:
        filter = binomial_filter(3, device=input.device, dtype=input.dtype)
    if filter.dim() == 2:
        filter = filter[None, None]
    if filter.dim() != 4 or filter.size(0) not in (1, count) or filter.size(1) != 1:
        raise ValueError(
            f"filter has the shape {tuple(filter.shape)}. Give (H, W), (1, 1, H, W) or, for this "
            f"input, ({count}, 1, H, W)."
        )
    height, width = filter.shape[-2:]
    sides = _same_padding(height, width) if padding is None else _both_sides(padding)
    padded = _pad_edges(input, sides, padding_mode)
    weight = filter.to(input.dtype).expand(count, 1, height, width)
    return F.conv2d(padded, weight, stride=as_pair(stride), groups=count)


def blurmax_pool2d(
    input: torch.Tensor,
    kernel_size: Size2d | None = None,
    stride: Size2d = 2,
    padding: Size2d = 0,
    dilation: Size2d = 1,
    ceil_mode: bool = False,
    filter: torch.Tensor | None = None,
    *,
    padding_mode: EdgeMode = "reflect",
) -> torch.Tensor:
    """Take the maximum around every pixel, smooth, and keep each `stride`-th.

    The output has the shape that `torch.nn.functional.max_pool2d` gives with the same arguments.

    Args:
        input: Images, (N, C, H, W) or (C, H, W).
        kernel_size: Window of the maximum. Default: 2.
        stride: Step along height and width. Default: 2.
        padding: Pixels of minus infinity on each side of the input, for the maximum. Default: 0.
        dilation: Step within the window. Default: 1.
        ceil_mode: Whether a window may reach over the far edge. Default: no.
        filter: As in `blur_2d`.
        padding_mode: As in `blur_2d`.
    """
    window, steps, border, spread = map(as_pair, (kernel_size or 2, stride, padding, dilation))
    if ceil_mode:
        beyond = [
            _beyond_the_edge(
                input.size(axis - 2), window[axis], steps[axis], border[axis], spread[axis]
            )
            for axis in (0, 1)
        ]
        if any(beyond):
            input = F.pad(input, (0, beyond[1], 0, beyond[0]), value=float("-inf"))
    wants_gradient = torch.is_grad_enabled() and input.requires_grad
    if input.device.type == "cpu" and not wants_gradient:
        maxima = _max_by_slices(input, window, border, spread)
    else:
        maxima = F.max_pool2d(input, window, 1, border, spread)
    return blur_2d(maxima, stride=steps, filter=filter, padding_mode=padding_mode)


def _binomial(taps: int) -> list[float]:
    if not 1 <= taps <= 7:
        raise ValueError(f"A blur filter of {taps} taps; give 1 to 7 (3 is the usual choice).")
    row = [1]
    for _ in range(taps - 1):
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    return [value / sum(row) for value in row]


def as_pair(value: Size2d) -> tuple[int, int]:
    """Return (height, width) of what may be one number for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _same_padding(height: int, width: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom, as `torch.nn.functional.pad` wants it."""
    return (width - 1) // 2, width // 2, (height - 1) // 2, height // 2


def _both_sides(padding: Size2d) -> tuple[int, int, int, int]:
    rows, columns = as_pair(padding)
    return columns, columns, rows, rows


def _pad_edges(
    input: torch.Tensor, sides: tuple[int, int, int, int], mode: EdgeMode
) -> torch.Tensor:
    if not any(sides):
        return input
    if mode == "zeros":
        return F.pad(input, sides)
    too_short = [max(sides[:2]) >= input.size(-1), max(sides[2:]) >= input.size(-2)]
    if mode == "replicate" or all(too_short):
        return _extend(input, sides, "replicate")
    if any(too_short):  # one axis can be reflected, the other cannot
        columns, rows = (*sides[:2], 0, 0), (0, 0, *sides[2:])
        short, long = (columns, rows) if too_short[0] else (rows, columns)
        return _extend(_extend(input, short, "replicate"), long, "reflect")
    return _extend(input, sides, "reflect")


def _extend(
    input: torch.Tensor, sides: tuple[int, int, int, int], mode: Literal["reflect", "replicate"]
) -> torch.Tensor:
    if not torch.are_deterministic_algorithms_enabled():
        return F.pad(input, sides, mode=mode)
    # CUDA's gradient of these paddings adds in no fixed order and refuses to run in this mode.
    for dim, (before, after) in ((-1, sides[:2]), (-2, sides[2:])):
        size = input.size(dim)
        if mode == "reflect":
            head = input.narrow(dim, 1, before).flip(dim)
            tail = input.narrow(dim, size - 1 - after, after).flip(dim)
        else:
            repeat = [-1] * input.dim()
            repeat[dim] = before
            head = input.narrow(dim, 0, 1).expand(repeat)
            repeat[dim] = after
            tail = input.narrow(dim, size - 1, 1).expand(repeat)
        input = torch.cat([head, input, tail], dim)
    return input


def _beyond_the_edge(size: int, window: int, stride: int, padding: int, dilation: int) -> int:
    """Return how far the last window of a pooling in ceil mode reaches over the padded input."""
    reach = dilation * (window - 1) + 1
    last = -(-(size + 2 * padding - reach) // stride)
    if last * stride >= size + padding:  # it would see nothing but padding
        last -= 1
    return max(0, last * stride + reach - (size + 2 * padding))


def _max_by_slices(
    input: torch.Tensor,
    window: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> torch.Tensor:
    """Compute a max pooling of stride 1, one axis after the other: far faster on CPU, forward."""
    if any(padding):
        input = F.pad(input, _both_sides(padding), value=float("-inf"))
    for dim, taps, step in ((-2, window[0], dilation[0]), (-1, window[1], dilation[1])):
        size = input.size(dim) - step * (taps - 1)
        maximum = input.narrow(dim, 0, size)
        for tap in range(1, taps):
            maximum = torch.maximum(maximum, input.narrow(dim, tap * step, size))
        input = maximum
    return input
