"""Megatron-LM's GPT as a program: its layers keep other tensors than PyTorch's modules do."""
