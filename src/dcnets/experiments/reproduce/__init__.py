"""The runs of the paper's tables: which are missing, how long they take, and their execution on one device or many."""
