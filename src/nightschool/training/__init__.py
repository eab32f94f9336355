"""Training: losses on tensors, prefix packing, backends, the loop."""
