"""The pixels of a Pillow image as a tensor, without a copy: Arrow's C data interface.

Pillow keeps RGB in four bytes a pixel and gives it away only packed into three, which takes as long
as to resize a crop. Since Pillow 11.2 an image also lends its memory in Arrow's layout
(https://arrow.apache.org/docs/format/CDataInterface.html), read here by ctypes.
"""

import ctypes

import torch
from PIL import Image
from torch import Tensor


class _ArrowArray(ctypes.Structure):
    pass


_ArrowArray._fields_ = [
    *((name, ctypes.c_int64) for name in ("length", "null_count", "offset")),
    *((name, ctypes.c_int64) for name in ("n_buffers", "n_children")),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    *((name, ctypes.c_void_p) for name in ("dictionary", "release", "private_data")),
]

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def borrowed(image: Image.Image) -> Tensor | None:
    """uint8 `h w 4` over the memory of an RGB image: to be read only; the last channel is unused.

    None where Pillow does not lend it: an older version, or more than 16 MiB.
    """
    if image.mode != "RGB":
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except (AttributeError, ValueError):
        return None
    pixels = _ArrowArray.from_address(_pointer(capsule, b"arrow_array"))  # lists of four bytes
    count = image.width * image.height
    if pixels.length != count or pixels.n_children != 1:
        return None
    values = pixels.children[0].contents
    if values.length != 4 * count or values.n_buffers != 2 or pixels.offset or values.offset:
        return None
    memory = (ctypes.c_uint8 * (4 * count)).from_address(values.buffers[1])
    # It lives as long as there is a tensor over it.
    memory.owner = capsule  # pyright: ignore[reportAttributeAccessIssue]
    return torch.frombuffer(memory, dtype=torch.uint8).view(image.height, image.width, 4)
