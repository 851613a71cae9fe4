"""Charts: one file each, plain records in, a `Chart` out. Only this package imports matplotlib."""
