"""The error of data that cannot be read or found."""

from __future__ import annotations


class DataError(ValueError):
    """Data that is missing, damaged or not what its name says; the message tells where, what was expected, what to do."""


def flaw(where: str, offset: int, problem: str, advice: str = "delete the file and fetch it again") -> DataError:
    """The error of a damaged file, with the byte at which it shows."""
    return DataError(f"{where}, byte {offset}: {problem}; {advice}")
