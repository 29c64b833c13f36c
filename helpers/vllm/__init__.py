"""The second consumer of the same checkpoints: one pinned vLLM release, asked on a CPU what it makes of them. It is not modelled here."""
