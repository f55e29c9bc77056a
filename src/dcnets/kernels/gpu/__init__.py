"""The Triton path: needs triton, and is imported only where it is taken."""
