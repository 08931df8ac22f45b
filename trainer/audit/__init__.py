"""The audit of an online training, to the token: what `attach` puts on a GRPO trainer."""
