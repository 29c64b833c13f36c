"""The number format itself: codec, scale layouts, a reference MoE layer, and the audit of a checkpoint's weights. Needs torch."""
