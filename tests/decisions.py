"""What ReLUs and max pools decide: recorded in one computation, and taken over by another.

Two computations of a deep network that differ by rounding alone find other signs for some numbers near 0 and other maxima
among nearly equal ones, and behind each of them other gradients. A float64 truth that takes over the decisions of what it is
compared with is the truth about the rest.
"""

from contextlib import contextmanager

from torch import nn
from torch.nn import functional as F

from dcnets.fusing.blocks import FusedBlock


@contextmanager
def recorded():
    """A list, to which each ReLU, alone or fused, appends where it lets numbers through, and each max pool what it takes."""
    decisions = []
    alone, fused, pool = nn.ReLU.forward, FusedBlock.linked, nn.MaxPool2d.forward

    def forward(self, x):
        decisions.append(x > 0)
        return alone(self, x)

    def linked(self, *arguments, relu=False, **options):
        before = len(decisions)
        y, known = fused(self, *arguments, relu=relu, **options)
        if (relu or isinstance(self[-1], nn.ReLU)) and len(decisions) == before:  # no ReLU was called: it was fused
            decisions.append(y > 0)
        return y, known

    def pooled(self, x):
        decisions.append(F.max_pool2d(x, *sizes(self), return_indices=True)[1])
        return pool(self, x)

    nn.ReLU.forward, FusedBlock.linked, nn.MaxPool2d.forward = forward, linked, pooled
    try:
        yield decisions
    finally:
        nn.ReLU.forward, FusedBlock.linked, nn.MaxPool2d.forward = alone, fused, pool


@contextmanager
def taken_over(decisions, near=1e-3):
    """ReLUs and max pools decide as recorded, one after another; otherwise than they would only where it is a near thing.

    A sign may differ near 0, a maximum among numbers that are near each other, by the root of the mean square.
    """
    alone, pool, left = nn.ReLU.forward, nn.MaxPool2d.forward, list(reversed(decisions))

    def check(moved, x):
        assert (moved <= near * x.detach().square().mean().sqrt()).all(), moved.max()

    def forward(self, x):
        own = left.pop()
        check(x.detach().abs()[own != (x > 0)], x)
        return x * own

    def pooled(self, x):
        own = left.pop()
        taken = x.flatten(2).gather(2, own.flatten(2)).view(own.shape)
        check(pool(self, x).detach() - taken.detach(), x)
        return taken

    nn.ReLU.forward, nn.MaxPool2d.forward = forward, pooled
    try:
        yield
    finally:
        nn.ReLU.forward, nn.MaxPool2d.forward = alone, pool
    assert not left, "fewer ReLUs and max pools than decisions"


def sizes(pool):
    """What `max_pool2d` is told of a max pool."""
    return pool.kernel_size, pool.stride, pool.padding, pool.dilation, pool.ceil_mode
