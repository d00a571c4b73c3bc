# SPDX-License-Identifier: Apache-2.0
"""Boolean masks of attention as what the operator takes: a range of keys for each row."""
from __future__ import annotations

import torch
from torch import Tensor

Ranges = tuple[Tensor, Tensor]  # begin and end, int32 [B, S]


def ranges_of(mask: Tensor) -> Ranges | None:
    """Of bool [B, 1, S, K]. None where a row sees no range of keys, or where a range goes back: neither end may ever fall.

    A row that sees nothing is empty, at the end of what the rows before it see.
    """
    seen = mask[:, 0]
    if seen.shape[0] > 1 and seen.stride(0) == 0:
        seen = seen[:1]
    count = seen.sum(-1, dtype=torch.int32)
    keys = seen.shape[-1]
    if keys == 0 or seen.shape[1] == 0:
        return torch.zeros_like(count), torch.zeros_like(count)
    marks = seen.view(torch.uint8) if seen.is_contiguous() else seen.to(torch.uint8)
    begin = marks.argmax(-1).to(torch.int32)
    end = keys - marks.flip(-1).argmax(-1).to(torch.int32)
    is_empty = count == 0
    end = end.masked_fill(is_empty, 0)
    end = torch.where(is_empty, end.cummax(-1).values, end)
    begin = torch.where(is_empty, end, begin)
    ok = (end - begin == count).all() & (begin[:, 1:] >= begin[:, :-1]).all() & (end[:, 1:] >= end[:, :-1]).all()
    return (begin, end) if bool(ok) else None
