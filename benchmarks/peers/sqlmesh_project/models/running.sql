MODEL (
  name db.running,
  kind INCREMENTAL_BY_TIME_RANGE (time_column day, lookback LOOKBACK),
  start '2026-03-01',
  cron '@daily',
  partitioned_by day,
  table_format iceberg,
  physical_properties ('format-version' = '3')
);

SELECT account, seconds, day
FROM (
  SELECT account, sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds, day FROM db.daily
)
WHERE day BETWEEN @start_date AND @end_date
