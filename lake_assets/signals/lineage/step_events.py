"""The events of a step: START, then COMPLETE, FAIL or ABORT; and those of its audits."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache

from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import RunFacet, error_message_run, job_type_job, parent_run, processing_engine_run

from lake_assets.ingest.ingest_specs import RawSpec
from lake_assets.journal.step_records import StepRecord
from lake_assets.lake import TableId
from lake_assets.pipeline.observed_steps import ObservedStep, StepEnd
from lake_assets.pipeline.table_graph import lookups_of
from lake_assets.signals.error_text import error_text
from lake_assets.signals.lineage.dataset_facets import input_of, named_input, named_output, other_input, output_of
from lake_assets.signals.lineage.dataset_names import of_landing, of_live
from lake_assets.signals.lineage.producer import PRODUCER, VERSION, ours, version_of
from lake_assets.tables.audits.audit_evaluation import Finding
from lake_assets.tables.outcome import Absorbed

log = logging.getLogger(__name__)
_DAGSTER = "dagster "


class StepEvents:
    """The events of one step.

    Args:
        namespace: the namespace of jobs.
    """

    def __init__(self, step: ObservedStep, namespace: str) -> None:
        self._step, self._namespace = step, namespace
        self._lake = step.lake.glance()
        self._named: tuple[list[OutputDataset], list[InputDataset]] = [], []

    def began(self) -> RunEvent:
        """Return the event of a step that begins: its datasets have names alone, and the next event tells more."""
        lake, spec = self._lake, self._step.spec
        inputs = [*(named_input(lake, t) for t in self._tables), *self._others({})]
        self._named = [named_output(lake, spec.table)], inputs
        return self._event(RunState.START, self._step.started_at, *self._named)

    def ended(self, end: StepEnd, at: float) -> RunEvent:
        """Return the event of how the step has ended.

        Args:
            at: when, in seconds since 1970, if there is no record that says so.
        """
        record, self._lake = end.record, end.seen or self._step.lake.glance()
        outputs, inputs = self._datasets(record, end.outcome.windows if end.outcome else ())
        at = record.ended_at if record else at
        if end.error is None:
            return self._event(RunState.COMPLETE, at, outputs, inputs)
        if not isinstance(end.error, Exception):
            return self._event(RunState.ABORT, at, outputs, inputs)
        text = error_text(self._step.lake, f"{type(end.error).__name__}: {end.error}")
        failed: dict[str, RunFacet] = {"errorMessage": ours(error_message_run.ErrorMessageRunFacet(text, "PYTHON"))}
        return self._event(RunState.FAIL, at, outputs, inputs, failed)

    def audited(self, end: StepEnd, at: float) -> list[RunEvent]:
        """Return the events of the step's audits: a job of their own, which reads the table; none without audits.

        Assertions are facets of inputs: of the table of a step, which is its output, they could not be told.
        """
        findings: Sequence[Finding] = end.outcome.audits if end.outcome else getattr(end.error, "findings", ())
        if not findings:
            return []
        snapshot = end.record.snapshot if end.record else None
        run = uuid.uuid5(uuid.UUID(self._step.id), "audits")
        read = input_of(self._lake, self._step.spec.table, snapshot, findings)
        facets = self._parent(self._step.id, self._job_name)
        job = Job(self._namespace, f"{self._job_name}.audits", facets={"jobType": _kind("TEST")})
        return [
            RunEvent(
                eventTime=_time(at), eventType=state, producer=PRODUCER, run=Run(str(run), facets=facets), job=job,
                inputs=[read],
            )
            for state in (RunState.START, RunState.COMPLETE)
        ]  # fmt: skip

    @property
    def _job_name(self) -> str:
        return f"{self._step.spec.pipeline}.{self._step.spec.table}"

    def _event(
        self,
        state: RunState,
        at: float,
        outputs: list[OutputDataset],
        inputs: list[InputDataset],
        more: dict[str, RunFacet] | None = None,
    ) -> RunEvent:
        facets: dict[str, RunFacet] = {"processing_engine": _engine(), **(more or {})}
        if self._step.run.startswith(_DAGSTER):
            # Of a pipeline's run it is known which one it is, not by which of Dagster's jobs it was requested.
            facets |= self._parent(self._step.run.removeprefix(_DAGSTER), self._step.spec.pipeline)
        return RunEvent(
            eventTime=_time(at),
            eventType=state,
            producer=PRODUCER,
            run=Run(self._step.id, facets=facets),
            job=Job(self._namespace, self._job_name, facets={"jobType": _kind("STEP")}),
            inputs=inputs,
            outputs=outputs,
        )

    def _parent(self, run: str, job: str) -> dict[str, RunFacet]:
        try:
            of = parent_run.Run(runId=run)
        except ValueError:  # no UUID
            return {}
        return {"parent": ours(parent_run.ParentRunFacet(of, parent_run.Job(self._namespace, job)))}

    @property
    def _tables(self) -> list[TableId]:
        """The tables that the step reads."""
        return list(dict.fromkeys((*self._step.spec.sources, *lookups_of(self._step.spec))))

    def _datasets(
        self, record: StepRecord | None, windows: Sequence[Absorbed]
    ) -> tuple[list[OutputDataset], list[InputDataset]]:
        """Return what the step writes and reads; as START has it, if the tables cannot be read, for which it may have
        failed."""
        try:
            return [output_of(self._lake, self._step.spec, record)], self._inputs(windows)
        except Exception as e:  # of the catalog, of the store, of broken metadata
            log.info("the event of %s tells less: %s", self._job_name, type(e).__name__)
            return self._named

    def _inputs(self, windows: Sequence[Absorbed]) -> list[InputDataset]:
        """Return what the step reads; of absorbed sources with the snapshots up to which, and with how much."""
        by_source = {w.source: w for w in windows}
        read = [(t, by_source.get(str(t))) for t in self._tables]
        inputs = [input_of(self._lake, t, w.end if w else None, window=w) for t, w in read]
        return [*inputs, *self._others(by_source)]

    def _others(self, windows: Mapping[str, Absorbed]) -> list[InputDataset]:
        """Return what the step reads and is no table of the lake.

        Args:
            windows: what it has absorbed, by source.
        """
        spec, inputs = self._step.spec, list[InputDataset]()
        if isinstance(spec, RawSpec) and spec.landing is not None:
            inputs.append(other_input(of_landing(spec.landing), "FILE", windows.get(str(spec.landing))))
        if isinstance(spec, RawSpec) and spec.live is not None:
            kind = "TOPIC" if spec.live.where.startswith("Kafka") else "TABLE"
            inputs += [other_input(name, kind) for name in of_live(spec.live)]
        return inputs


# Facets that many events share are made once: their values are checked in each of their constructors.
@cache
def _engine() -> processing_engine_run.ProcessingEngineRunFacet:
    return ours(processing_engine_run.ProcessingEngineRunFacet(version_of("pyspark"), "Spark", VERSION))


@cache
def _kind(kind: str) -> job_type_job.JobTypeJobFacet:
    return ours(job_type_job.JobTypeJobFacet("BATCH", "LAKE_ASSETS", kind))


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
