"""`python -m dcnets`, which torchrun needs: the same as the command `dcnets`."""

from dcnets.cli import main

main()
