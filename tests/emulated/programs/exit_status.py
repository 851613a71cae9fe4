"""Says what it was given, then ends as it was told to."""
import atexit
import sys

import torch

atexit.register(lambda: print("at exit"))
torch.ones(4, 4, device="cuda", requires_grad=True).sum().backward()
print(__name__, sys.argv[1:], sys.path[0].rpartition("/")[2])
how = sys.argv[1]
if how == "raise":
    raise ValueError("on purpose")
sys.exit(int(how) if how.isdecimal() else how)
