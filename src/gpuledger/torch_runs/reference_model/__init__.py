"""The PyTorch model that `gpuledger.program` describes: one module per program part.

Each file here is read beside the file of the same name in `gpuledger/program`. Local variables are
part of the description: a Python name keeps its tensor alive until it is rebound or its function
returns.
"""
