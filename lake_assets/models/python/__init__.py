"""Python models: a function over captured changes, whose rows are applied to a table as declared.

`python_model` is what users write, `model_inputs` what their functions receive, `python_model_step` the step.
"""
