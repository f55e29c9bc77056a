"""Everything that trains: may use more than torch."""
