"""Megatron-LM: contiguous buffers, the distributed optimizer, what its schedules and layers keep."""
