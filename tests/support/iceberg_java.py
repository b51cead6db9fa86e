"""Changes that Spark SQL cannot make to an Iceberg table, by Iceberg's Java API in Spark's JVM.

Spark never writes equality deletes (Flink does), lists a file twice, or gives rows new ids when it rewrites files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from lake_assets import Lake


class Java:
    """Iceberg's Java API over the tables of a lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        spark: Any = lake.spark()
        self._spark = spark
        self._jvm = spark._jvm
        self._gateway = spark.sparkContext._gateway
        self._iceberg = self._jvm.org.apache.iceberg

    def table(self, name: str) -> Any:
        loader = self._iceberg.spark.Spark3Util
        return loader.loadIcebergTable(self._spark._jsparkSession, f"{self._lake.config.name}.{name}")

    def delete_where_equal(
        self, name: str, rows: Sequence[Mapping[str, Any]], upserts: Sequence[Mapping[str, Any]] = ()
    ) -> int:
        """Commit an equality delete for each of `rows`, with `upserts` as new rows of the same commit, as Flink does.

        In a partitioned table the rows name the partition columns too, and all lie in one partition.
        """
        table = self.table(name)
        columns = list(rows[0])
        schema = table.schema().select(self._array(self._jvm.java.lang.String, columns))
        ids = [table.schema().findField(c).fieldId() for c in columns]
        builder = self._iceberg.data.GenericFileWriterFactory.Builder(table)
        parquet = self._iceberg.FileFormat.PARQUET
        factory = (
            builder.dataSchema(table.schema())
            .dataFileFormat(parquet)
            .deleteFileFormat(parquet)
            .equalityDeleteRowSchema(schema)
            .equalityFieldIds(self._array(self._gateway.jvm.int, ids))
            .build()
        )
        delta = table.newRowDelta()
        writer = factory.newEqualityDeleteWriter(self._file(table), table.spec(), self._partition(table, rows[0]))
        for row in rows:
            writer.write(self._record(schema, row))
        writer.close()
        delta.addDeletes(writer.toDeleteFile())
        if upserts:
            data = factory.newDataWriter(self._file(table), table.spec(), self._partition(table, upserts[0]))
            for row in upserts:
                data.write(self._record(table.schema(), row))
            data.close()
            delta.addRows(data.toDataFile())
        delta.commit()
        return self._current(name)

    def rewrite_without_row_ids(self, name: str, *, keeps_sequence_number: bool) -> int:
        """Rewrite an unpartitioned table to one new file, like an engine without row lineage."""
        table = self.table(name)
        rows = [r.asDict() for r in self._lake.spark().table(self._lake.sql_name(name)).collect()]
        parquet = self._iceberg.FileFormat.PARQUET
        factory = self._iceberg.data.GenericFileWriterFactory.Builder(table)
        factory = factory.dataSchema(table.schema()).dataFileFormat(parquet).build()
        writer = factory.newDataWriter(self._file(table), table.spec(), None)
        for row in reversed(rows):
            writer.write(self._record(table.schema(), row))
        writer.close()
        rewrite = table.newRewrite().validateFromSnapshot(self._current(name)).addFile(writer.toDataFile())
        if keeps_sequence_number:
            rewrite.dataSequenceNumber(table.currentSnapshot().sequenceNumber())
        files = table.newScan().planFiles().iterator()
        while files.hasNext():
            task = files.next()
            rewrite.deleteFile(task.file())
            for delete in task.deletes():
                rewrite.deleteFile(delete)
        rewrite.commit()
        return self._current(name)

    def restore(self, name: str, snapshot_id: int, *, with_metrics: bool) -> int:
        """Replace the current data files with those of an older snapshot, in a new commit."""
        table = self.table(name)
        change = table.newOverwrite()
        former = table.newScan().useSnapshot(snapshot_id)
        for scan, put in (
            (table.newScan(), change.deleteFile),
            (former.includeColumnStats() if with_metrics else former, change.addFile),
        ):
            files = scan.planFiles().iterator()
            while files.hasNext():
                put(files.next().file())
        change.commit()
        return self._current(name)

    def remove_deletes(self, name: str) -> int:
        """Drop all delete files, so that deleted rows are visible again."""
        table = self.table(name)
        change = table.newRowDelta()
        files = table.newScan().planFiles().iterator()
        while files.hasNext():
            for delete in files.next().deletes():
                change.removeDeletes(delete)
        change.commit()
        return self._current(name)

    def append_again(self, name: str) -> int:
        """Append a data file that the table lists already."""
        table = self.table(name)
        files = table.newScan().planFiles().iterator()
        file = files.next().file()
        table.newAppend().appendFile(file.copyWithoutStats()).commit()
        return self._current(name)

    def _current(self, name: str) -> int:
        snapshot = self._lake.table(name).current_snapshot()
        assert snapshot is not None
        return snapshot.snapshot_id

    def _array(self, kind: Any, values: Sequence[Any]) -> Any:
        array = self._gateway.new_array(kind, len(values))
        for i, v in enumerate(values):
            array[i] = v
        return array

    def _file(self, table: Any) -> Any:
        factory = self._iceberg.io.OutputFileFactory.builderFor(table, 1, 1)
        return factory.format(self._iceberg.FileFormat.PARQUET).build().newOutputFile()

    def _record(self, schema: Any, row: Mapping[str, Any]) -> Any:
        # Over py4j every small number is an Integer, whatever its column is; Iceberg's own parser knows the types.
        nans = [c for c, v in row.items() if isinstance(v, float) and math.isnan(v)]
        by_id = {str(schema.findField(c).fieldId()): v for c, v in row.items() if v is not None and c not in nans}
        record = self._iceberg.SingleValueParser.fromJson(schema.asStruct(), json.dumps(by_id))
        for column in nans:  # JSON has none
            record.setField(column, math.nan)
        return record

    def _partition(self, table: Any, row: Mapping[str, Any]) -> Any:
        if table.spec().isUnpartitioned():
            return None
        key = self._iceberg.PartitionKey(table.spec(), table.schema())
        key.partition(self._record(table.schema(), row))
        return key
