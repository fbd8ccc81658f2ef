"""Hyperparameters of images: colour, blur, what is cut out, flips."""
