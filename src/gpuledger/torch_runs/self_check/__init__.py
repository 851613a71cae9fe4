"""The engine against PyTorch: random configurations, the streams of allocations and frees compared.
"""
