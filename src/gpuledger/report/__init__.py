"""gpuledger."""
