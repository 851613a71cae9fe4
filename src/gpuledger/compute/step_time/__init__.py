"""Seconds of one optimizer step, term by term, from sizes, links and a schedule.

`of_run.step_time(run)` answers for a run. The pieces below it are plain arithmetic on numbers or
NumPy arrays; docs/step_time.md says what each of them stands on and how far it is off.
"""
