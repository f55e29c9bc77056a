"""The robustness study: everything that is measured of all networks in a folder of runs, line by line, and its tables."""
