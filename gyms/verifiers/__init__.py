"""Prime Intellect Verifiers: the German task as a native v1 environment.

Inside upstream's process: ``verifiers_environment`` (the id that its commands load), ``taskset``, ``tools``,
``fixture_harness`` and ``play``. Free of upstream, for any interpreter: ``launch``, ``evidence``, ``rules`` and
``classify``, which alone decides whether a saved rollout has a reward.
"""
