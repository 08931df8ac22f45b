"""How good a policy is: episodes, statistics, retention."""
