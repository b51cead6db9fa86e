MODEL (
  name db.daily,
  kind INCREMENTAL_BY_TIME_RANGE (time_column day, lookback LOOKBACK),
  start '2026-03-01',
  cron '@daily',
  partitioned_by day,
  table_format iceberg,
  physical_properties ('format-version' = '3')
);

SELECT account, sum(seconds) AS seconds, count(*) AS plays, to_date(started_at) AS day
FROM src.events
WHERE started_at >= @start_ts AND started_at <= @end_ts
GROUP BY account, to_date(started_at)
