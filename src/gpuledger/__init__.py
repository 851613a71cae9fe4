"""Accounts for every byte and every FLOP of a GPT training run."""
__version__ = "0.1.0"
