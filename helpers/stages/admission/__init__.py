"""SGLang's resolution of its server arguments, as far as MoE checkpoints meet it: one module for each group of rules."""
