"""The step program: a training step as data, from which every number is derived."""
