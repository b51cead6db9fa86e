"""`dg scaffold defs lake_assets.LakePipeline NAME` (or `CapturedJob`): write a valid file to start from."""

from __future__ import annotations

from typing import ClassVar

import dagster as dg

_STARTER = """\
# Tables kept up to date from what changed. `dg check yaml` checks this file, `dg list defs` shows its definitions.
type: {type}

attributes:
  name: {name}                 # the tables belong to this pipeline; two pipelines cannot share a table
  # owners: [team:data]          # like tags, group and kinds, also for single streams, tables and models

  streams:
    - name: {name}_events      # raw.{name}_events: records as they arrived
      format: debezium
      # landing: landing/{name}_events   # folder of incoming files: absolute, or relative to the lake's home
      tables:
        # schema.table, as in the source: staging.<table> gets every change, final.<table> the current rows
        - public.*
        # - table: public.users
        #   key: id                        # default: the stream's key
        #   rename: {{email: email_address}} # no stream reports a rename
      # exclude: public.internal_*

  # SELECTs over tables of the lake, each kept up to date from the changes in its tables.
  models: []
  # models:
  #   - name: agg.users_per_city
  #     sql: |
  #       SELECT city, count(*) AS users FROM final.users GROUP BY city
"""


_JOB = """\
# A job of your own over what changed. `dg check yaml` checks this file, `dg list defs` shows its definitions.
type: {type}

attributes:
  table: agg.{name}            # the table that the job writes; its snapshots say what it has absorbed
  inputs: [final.users]        # their changes trigger the job
  # lookups: [final.cities]      # read as they are
  # ranges: [day]                # the changed range of a column: {{low.day}}, {{high.day}}
  # on_unknown: rerun            # for jobs that may run twice over the same changes
  # full: SELECT ...             # all rows that the table should have, for `lake-assets verify`

  # Exactly one of these; the job gets LAKE_STEP_* variables:
  command: [python, job.py]
  # python: job:run              # a function that is called with the step
  # notebook: job.ipynb          # by papermill
  # dbt: {{project: shop, select: daily+}}
"""


class PipelineScaffolder(dg.Scaffolder):
    """Writes defs.yaml with comments."""

    starter: ClassVar[str] = _STARTER

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write the YAML file, or Python if that was requested."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        folder = request.target_path.parent if request.append else request.target_path
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in folder.name)
        text = self.starter.format(type=request.type_name, name=name)
        if request.append:
            with request.target_path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")


class JobScaffolder(PipelineScaffolder):
    """Writes the defs.yaml of a job."""

    starter: ClassVar[str] = _JOB
