"""The layers that take the place of strided convolutions and poolings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from stretto.algorithms.blurpool.maths import (
    EdgeMode,
    Size2d,
    as_pair,
    binomial_filter,
    blur_2d,
    blurmax_pool2d,
)
from stretto.algorithms.surgery import adopt

__all__ = ["BlurConv2d", "BlurMaxPool2d", "BlurPool2d"]


class _FromComposer(nn.Module):
    """Understands Composer's state dicts: ``conv.weight`` is our ``weight``; it stores filters."""

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        for name in ("blur_filter", "filt2d"):
            state_dict.pop(prefix + name, None)
        for name in ("weight", "bias"):
            if prefix + "conv." + name in state_dict:
                state_dict[prefix + name] = state_dict.pop(prefix + "conv." + name)
        cast("Any", super())._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class BlurPool2d(_FromComposer):
    """Smooths and subsamples: `blur_2d` as a module.

    Args:
        channels: Channels of the input if you want it checked. Default: 0, any.
        stride: As in `blur_2d`. Default: 2.
        padding: As in `blur_2d`.
        filter_size: Taps of the binomial filter, one number or (height, width). Default: 3.
        padding_mode: As in `blur_2d`.
        device: Where the filter lives.
        dtype: Its type; it is applied in the input's type.
    """

    blur_filter: torch.Tensor

    def __init__(
        self,
        channels: int = 0,
        stride: Size2d = 2,
        padding: Size2d | None = None,
        *,
        filter_size: Size2d = 3,
        padding_mode: EdgeMode = "reflect",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if padding_mode not in ("reflect", "replicate", "zeros"):
            raise ValueError(
                f"padding_mode={padding_mode!r}. Give 'reflect', 'replicate' or 'zeros'."
            )
        self.channels = channels
        self.stride = stride
        self.padding = padding
        self.filter_size = filter_size
        self.padding_mode: EdgeMode = padding_mode
        where = torch.device(device) if device is not None else None
        blur_filter = binomial_filter(filter_size, device=where, dtype=dtype)
        self.register_buffer("blur_filter", blur_filter, persistent=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the smoothed and subsampled images."""
        return blur_2d(
            input,
            self.channels,
            self.stride,
            self.blur_filter,
            padding=self.padding,
            padding_mode=self.padding_mode,
        )

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> BlurPool2d:
        """Move as any module, then make the filter anew.

        It is in no state dict, so after ``to_empty`` nothing else would give it its values.
        """
        cast("Any", super())._apply(fn, recurse)
        with torch.no_grad():
            self.blur_filter.copy_(binomial_filter(self.filter_size))
        return self

    def extra_repr(self) -> str:
        """Return the arguments."""
        return (
            f"stride={self.stride}, filter_size={self.filter_size}, "
            f"padding_mode={self.padding_mode!r}"
        )


class BlurConv2d(_FromComposer, nn.Conv2d):
    """A strided convolution with a blur.

    It is a `torch.nn.Conv2d` with one child, ``blur``, that has no parameters. Along an axis with
    stride 1 nothing is blurred, unless both strides are 1.

    Args:
        in_channels: As in `torch.nn.Conv2d`.
        out_channels: As in `torch.nn.Conv2d`.
        kernel_size: As in `torch.nn.Conv2d`.
        stride: Step along height and width. Default: `kernel_size`.
        padding: As in `torch.nn.Conv2d`.
        dilation: As in `torch.nn.Conv2d`.
        groups: As in `torch.nn.Conv2d`.
        bias: As in `torch.nn.Conv2d`.
        blur_first: True blurs the input and then applies the strided convolution: little extra
            work. False, as in the paper, convolves with stride 1 and lets the blur subsample:
            about ``stride ** 2`` times the work. Default: True.
        padding_mode: The convolution's own padding, as in `torch.nn.Conv2d`.
        filter_size: Taps of the blur along a strided axis. Default: 3.
        edge_mode: The blur's padding, `blur_2d`'s ``padding_mode``. Default: ``reflect``.
        device: As in `torch.nn.Conv2d`.
        dtype: As in `torch.nn.Conv2d`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size2d,
        stride: Size2d | None = None,
        padding: Size2d | str = 0,
        dilation: Size2d = 1,
        groups: int = 1,
        bias: bool = True,
        blur_first: bool = True,
        *,
        padding_mode: str = "zeros",
        filter_size: int = 3,
        edge_mode: EdgeMode = "reflect",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        steps = as_pair(kernel_size if stride is None else stride)
        cast("Any", super()).__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride=steps if blur_first else 1,
            padding=padding,
            dilation=dilation,
            groups=groups,
            bias=bias,
            padding_mode=padding_mode,
            device=device,
            dtype=dtype,
        )
        self.blur_first = blur_first
        self.blur = BlurPool2d(
            in_channels if blur_first else out_channels,
            stride=1 if blur_first else steps,
            filter_size=_taps(filter_size, steps),
            padding_mode=edge_mode,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the convolution, as large as the plain one's."""
        if self.blur_first:
            return super().forward(self.blur(input))
        return self.blur(super().forward(input))

    @classmethod
    def like(
        cls,
        module: nn.Conv2d,
        *,
        blur_first: bool = True,
        filter_size: int = 3,
        edge_mode: EdgeMode = "reflect",
    ) -> BlurConv2d:
        """Return a layer with the settings of `module`; its tensors are yet to be adopted."""
        layer = cls(
            module.in_channels,
            module.out_channels,
            module.kernel_size,
            stride=module.stride,
            padding=module.padding,
            dilation=module.dilation,
            groups=module.groups,
            bias=module.bias is not None,
            blur_first=blur_first,
            padding_mode=module.padding_mode,
            filter_size=filter_size,
            edge_mode=edge_mode,
            device="meta",
        )
        layer.blur.to_empty(device="cpu")
        return layer

    @classmethod
    def from_conv2d(
        cls, module: nn.Conv2d, module_index: int = -1, blur_first: bool = True
    ) -> BlurConv2d:
        """Return the layer that takes the place of `module`, with the same parameters.

        Args:
            module: A convolution.
            module_index: Ignored; Composer passes it.
            blur_first: See the class.
        """
        del module_index
        layer = cls.like(module, blur_first=blur_first)
        adopt(layer, module)
        return layer


class BlurMaxPool2d(_FromComposer, nn.MaxPool2d):
    """A max pooling that smooths the maxima before it subsamples them.

    Along an axis with stride 1 nothing is blurred, unless both strides are 1.

    Args:
        kernel_size: As in `torch.nn.MaxPool2d`.
        stride: As in `torch.nn.MaxPool2d`. Default: `kernel_size`.
        padding: As in `torch.nn.MaxPool2d`.
        dilation: As in `torch.nn.MaxPool2d`.
        ceil_mode: As in `torch.nn.MaxPool2d`.
        filter_size: Taps of the blur along a strided axis. Default: 3.
        edge_mode: The blur's padding, `blur_2d`'s ``padding_mode``. Default: ``reflect``.
        device: Where the filter lives.
        dtype: The filter's type; it is applied in the input's type.
    """

    def __init__(
        self,
        kernel_size: Size2d,
        stride: Size2d | None = None,
        padding: Size2d = 0,
        dilation: Size2d = 1,
        ceil_mode: bool = False,
        *,
        filter_size: int = 3,
        edge_mode: EdgeMode = "reflect",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, ceil_mode=ceil_mode)
        steps = as_pair(self.stride)
        self.blur = BlurPool2d(
            stride=steps,
            filter_size=_taps(filter_size, steps),
            padding_mode=edge_mode,
            device=device,
            dtype=dtype,
        )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the pooled images, as large as the plain pooling's."""
        return blurmax_pool2d(
            input,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            self.blur.blur_filter,
            padding_mode=self.blur.padding_mode,
        )

    @classmethod
    def like(
        cls, module: nn.MaxPool2d, *, filter_size: int = 3, edge_mode: EdgeMode = "reflect"
    ) -> BlurMaxPool2d:
        """Return a layer with the settings of `module`."""
        return cls(
            module.kernel_size,
            module.stride,
            module.padding,
            module.dilation,
            module.ceil_mode,
            filter_size=filter_size,
            edge_mode=edge_mode,
        )

    @classmethod
    def from_maxpool2d(cls, module: nn.MaxPool2d, module_index: int = -1) -> BlurMaxPool2d:
        """Return the layer that takes the place of `module`.

        Args:
            module: A max pooling that returns no indices.
            module_index: Ignored; Composer passes it.
        """
        del module_index
        layer = cls.like(module)
        adopt(layer, module)
        return layer


def _taps(filter_size: int, stride: tuple[int, int]) -> tuple[int, int]:
    """Return the filter's size: one tap along an axis that is not subsampled."""
    if stride == (1, 1):
        return filter_size, filter_size
    height, width = (filter_size if step > 1 else 1 for step in stride)
    return height, width
