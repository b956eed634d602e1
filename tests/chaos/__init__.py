"""The chaos test: a daemon, actors and learners as processes, which are killed, stopped and cut off at random, and a verdict over all they wrote.

`python -m chaos` from the folder tests (`make chaos`) runs it; tests/test_chaos.py runs a short form, soak.py looks for what grows. content.py: what
a step holds. world.py: the processes. actors.py, learners.py: what they do. faults.py: what is done to them. verdict.py: what must hold in the end.
"""
