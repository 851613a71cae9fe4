"""Pipeline parallelism: which blocks a stage has, in which order it runs its passes, what it holds."""
