"""Tables, expressions and interpreters of the task core's checks."""
