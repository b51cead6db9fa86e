"""Offsets of Kafka's topics: which record comes next in each partition, and what the brokers no longer have of them.

They are committed with the records, as one JSON value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lake_assets.lake.counts import plural
from lake_assets.sources.kafka_spec import KafkaSpec, matching

# So many notes of lost records are kept.
_GAPS = 20
# A partition of which nothing is known.
NEW = -1


@dataclass(frozen=True)
class Topic:
    """A topic as the brokers have it.

    Attributes:
        id: differs between a topic and another one created with its name; empty: the brokers are too old to tell.
        partitions: how many it has.
    """

    id: str
    partitions: int


@dataclass(frozen=True)
class Bounds:
    """What the brokers have of a partition: the records from `low` up to, not including, `high`."""

    low: int
    high: int


@dataclass
class TopicOffsets:
    """How far a topic is read.

    Attributes:
        id: see `Topic`.
        next: the offset of the next record, by partition.
    """

    id: str
    next: list[int]


@dataclass(frozen=True)
class Gap:
    """Records of a partition, or of a topic, that were not read and that the brokers no longer have."""

    topic: str
    text: str


@dataclass
class Offsets:
    """How far topics are read.

    Attributes:
        topics: by name; also those that are no longer declared, or no longer there.
        declared: the names and patterns at the time; None: nothing was read yet.
        gaps: what was lost, with the time at which that was found.
        has_records: whether a record has landed.
    """

    topics: dict[str, TopicOffsets] = field(default_factory=dict[str, TopicOffsets])
    declared: list[str] | None = None
    gaps: list[str] = field(default_factory=list[str])
    has_records: bool = False

    @classmethod
    def of_json(cls, value: Any) -> Offsets:
        """Return offsets as they were committed; None: nothing was."""
        if value is None:
            return cls()
        topics = {name: TopicOffsets(t["id"], list(t["next"])) for name, t in value["topics"].items()}
        return cls(topics, list(value["declared"]), list(value.get("gaps", ())), value["records"])

    def to_json(self) -> dict[str, Any]:
        """Return them as they are committed."""
        topics = {name: {"id": t.id, "next": list(t.next)} for name, t in sorted(self.topics.items())}
        gaps = {"gaps": list(self.gaps)} if self.gaps else {}
        return {"topics": topics, "declared": self.declared or [], "records": self.has_records, **gaps}

    def partitions(self, topics: Mapping[str, Topic]) -> list[tuple[str, int]]:
        """Return the partitions of topics."""
        return [(name, p) for name, topic in topics.items() for p in range(topic.partitions)]

    def note(self, gaps: Sequence[Gap]) -> None:
        """Remember that records are lost."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.gaps = [*self.gaps, *(f"{now} {g.text}" for g in gaps)][-_GAPS:]

    def follow(
        self, spec: KafkaSpec, topics: Mapping[str, Topic], bounds: Mapping[tuple[str, int], Bounds]
    ) -> list[Gap]:
        """Move to where the next record can be read: into new partitions, and over records that are gone.

        Args:
            topics: the topics to read, as the brokers have them.
            bounds: what they have of each partition.

        Returns:
            What was not read and is gone.
        """
        gaps = self._follow_deleted(spec, topics)
        for name, topic in topics.items():
            known = self.topics.get(name)
            is_latest = spec.start == "latest" and known is None and self._is_older_than_declaration(name)
            if known and known.id and topic.id and known.id != topic.id:
                gaps.append(
                    Gap(
                        name,
                        f"topic {name} was deleted and created again; records of the former one that were not read are "
                        f"lost (ids {known.id} and {topic.id})",
                    )
                )
                known = None
            if known is None:
                known = self.topics[name] = TopicOffsets(topic.id, [])
            known.id = topic.id or known.id
            known.next += [NEW] * (topic.partitions - len(known.next))
            for p in range(topic.partitions):
                gaps += self._follow_partition(name, known, p, bounds[(name, p)], is_latest=is_latest)
            if len(known.next) > topic.partitions:
                gaps.append(
                    Gap(name, f"topic {name} has {plural(topic.partitions, 'partition')}, and had {len(known.next)}")
                )
                del known.next[topic.partitions :]
        self.declared = list(spec.topics)
        return gaps

    def _follow_deleted(self, spec: KafkaSpec, topics: Mapping[str, Topic]) -> list[Gap]:
        """Forget topics that are declared, and gone."""
        gone = [name for name in self.topics if name not in topics and spec.names(name)]
        for name in gone:
            del self.topics[name]
        return [Gap(n, f"topic {n} was deleted; records that were not read are lost") for n in gone]

    def _is_older_than_declaration(self, topic: str) -> bool:
        """Whether a topic that was never read may have existed before its declaration did."""
        return self.declared is None or matching(topic, self.declared) is None

    def _follow_partition(self, name: str, known: TopicOffsets, p: int, there: Bounds, *, is_latest: bool) -> list[Gap]:
        at, where = known.next[p], f"partition {p} of topic {name}"
        if at == NEW:
            known.next[p] = there.high if is_latest else there.low
        elif at < there.low:
            known.next[p] = there.low
            text = (
                f"{where} begins at offset {there.low:,}, and the next one to read is {at:,}: up to {there.low - at:,} "
                "records were removed (retention.ms, retention.bytes) before they were read"
            )
            return [Gap(name, text)]
        elif at > there.high:
            known.next[p] = there.high
            text = (
                f"{where} ends at offset {there.high:,}, and was read up to {at:,}: the topic was deleted and created "
                "again, or its brokers have lost records"
            )
            return [Gap(name, text)]
        return []
