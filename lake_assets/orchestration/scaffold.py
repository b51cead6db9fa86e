"""`dg scaffold defs lake_assets.LakePipeline NAME`: a file to start from, valid as it is."""

from __future__ import annotations

import dagster as dg

_STARTER = """\
# Tables kept up to date from what changed. `dg check yaml` checks this file, `dg list defs` shows what it makes.
type: {type}

attributes:
  name: {name}                 # the tables belong to this pipeline; two pipelines cannot share one
  # owners: [team:data]          # also of single streams, tables and models; so are tags, group, kinds

  streams:
    - name: {name}_events      # raw.{name}_events: records as they came
      format: debezium
      # landing: landing/{name}_events   # where files arrive: below the lake's home, or an absolute path
      tables:
        # schema.table as the source calls it: staging.<table> gets every change, final.<table> the current rows
        - public.*
        # - table: public.users
        #   key: id                        # default: what the stream says
        #   rename: {{email: email_address}} # no stream reports a rename
      # exclude: public.internal_*

  # SELECTs over tables of the lake, each kept up to date from what changes in them.
  models: []
  # models:
  #   - name: agg.users_per_city
  #     sql: |
  #       SELECT city, count(*) AS users FROM final.users GROUP BY city
"""


class PipelineScaffolder(dg.Scaffolder):
    """Writes defs.yaml with comments."""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write the file, or the Python of it where that was asked for."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        folder = request.target_path.parent if request.append else request.target_path
        name = "".join(c if c.isalnum() or c == "_" else "_" for c in folder.name)
        text = _STARTER.format(type=request.type_name, name=name)
        if request.append:
            with request.target_path.open("a", encoding="utf-8") as file:
                file.write(f"---\n{text}")
        else:
            (request.target_path / "defs.yaml").write_text(text, encoding="utf-8")
