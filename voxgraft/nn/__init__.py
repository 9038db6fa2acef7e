"""Networks without a family: attention, backbones, extended rows, adapters, kernels. Importing this needs no torch."""

IGNORE_INDEX = -100
"""A target that no loss looks at (torch's default): padding, and the last position of a sequence."""
