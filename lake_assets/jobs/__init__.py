"""Jobs: users' own programs over captured changes, with a watermark for their table.

`captured_step` gives a program its windows and moves the watermark, `step_notes` remembers a step that is killed,
`step_parameters` hands the windows to other processes. What computes the rows belongs to the user.
"""

from lake_assets.jobs.step_parameters import StepParameters, current_step

__all__ = ["StepParameters", "current_step"]
