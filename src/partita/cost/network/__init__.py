"""Network time: how long collectives and moves to the host take, alone and combined."""
