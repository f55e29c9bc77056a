"""What ReLUs decide: recorded in one computation, and taken over by another.

Two computations of a deep network that differ by rounding alone find other signs for some numbers near 0, and behind each of
them other gradients. A float64 truth that takes over the decisions of what it is compared with is the truth about the rest.
"""

from contextlib import contextmanager

from torch import nn

from dcnets.fused_blocks import FusedBlock


@contextmanager
def recorded():
    """A list, to which each ReLU, alone or fused, appends where it lets numbers through."""
    decisions = []
    alone, fused = nn.ReLU.forward, FusedBlock.linked

    def forward(self, x):
        decisions.append(x > 0)
        return alone(self, x)

    def linked(self, *arguments, relu=False, **options):
        before = len(decisions)
        y, known = fused(self, *arguments, relu=relu, **options)
        if (relu or isinstance(self[-1], nn.ReLU)) and len(decisions) == before:  # no ReLU was called: it was fused
            decisions.append(y > 0)
        return y, known

    nn.ReLU.forward, FusedBlock.linked = forward, linked
    try:
        yield decisions
    finally:
        nn.ReLU.forward, FusedBlock.linked = alone, fused


@contextmanager
def taken_over(decisions, near=1e-3):
    """ReLUs decide as recorded, one after another; otherwise than they would only near 0, by the root of the mean square."""
    alone, left = nn.ReLU.forward, list(reversed(decisions))

    def forward(self, x):
        own = left.pop()
        moved = x.detach().abs()[own != (x > 0)]
        assert (moved <= near * x.detach().square().mean().sqrt()).all(), moved.max()
        return x * own

    nn.ReLU.forward = forward
    try:
        yield
    finally:
        nn.ReLU.forward = alone
    assert not left, "fewer ReLUs than decisions"
