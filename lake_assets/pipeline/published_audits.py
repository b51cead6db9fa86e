"""Evaluate a table's audits on the published table, apart from a batch."""

from __future__ import annotations

from dataclasses import replace

from lake_assets.final.added_columns import FROM
from lake_assets.final.final_spec import FinalSpec
from lake_assets.jobs.job_spec import JobSpec
from lake_assets.lake import LakeBase
from lake_assets.pipeline.sensitive_steps import findings_without_values
from lake_assets.pipeline.table_graph import ComputedSpec
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.audits.audit_gate import Gate
from lake_assets.tables.writing.table_ddl import columns_of, key_in


def audit(lake: LakeBase, spec: ComputedSpec | JobSpec, only: frozenset[str] | None = None) -> tuple[Finding, ...]:
    """Evaluate the audits of the published table; return no findings for an empty table.

    Args:
        only: names of audits; None: all.

    Raises:
        PipelineError: an audit does not match the table.
    """
    table = lake.find(spec.table)
    if table is None or table.metadata.current_snapshot_id is None:
        return ()
    if only is not None:
        spec = replace(spec, audits=tuple(a for a in spec.audits if a.name in only))
    key = key_in(table)
    if isinstance(spec, FinalSpec) and key and spec.mode != "scd1":
        key = (*key, FROM) if spec.mode == "scd2" else ()
    gate = Gate(lake, spec.table, spec.audits, key)
    gate.check(columns_of(lake, spec.table))
    return findings_without_values(lake, spec, gate.audit_published(table.metadata.current_snapshot_id))
