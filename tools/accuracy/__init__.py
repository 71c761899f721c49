"""`make accuracy`: how near predictions come to what the TPU compiler makes of the same plans."""
