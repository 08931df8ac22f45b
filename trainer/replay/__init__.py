"""What ``gymqual.trainer.replay.audit`` derives again from a training run's raw evidence, claim by claim.

Every function of these modules that ends in ``_faults`` yields one sentence for each thing that does not hold, and
nothing if all does. None of them uses what made the run: neither TRL nor the trainer's own audits and objective.
"""
