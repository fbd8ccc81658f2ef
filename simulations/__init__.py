"""Experiments: configurations, the command line, run folders, comparisons, the Ray-backed simulation.

What does not fit (a configuration, data, a folder) raises a :class:`.ConfigError` or ``ValueError``, and what
cannot go on a :class:`.RunError`, ``ClientError`` or ``TrainingError``, each of one sentence for the user.
``Interrupted`` is raised by a signal, once what is finished is saved. Docstrings do not repeat that.
"""
