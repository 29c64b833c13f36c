"""The real SGLang releases, run on a machine without a GPU: environments, worker, comparison with helpers.stages, snapshots."""
