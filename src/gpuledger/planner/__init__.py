"""From a model and GPUs to a layout, and from a layout to the request that is submitted."""
