"""What built-in models are made of: train steps, attention, feed-forwards, stacks, U-Nets."""
