"""What GPUs were measured to take, and the figures of the hardware files that follow from it."""
