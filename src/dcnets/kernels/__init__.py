"""The fused paths behind `functional`'s switch."""
