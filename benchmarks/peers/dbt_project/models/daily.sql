{{ config(materialized="incremental", incremental_strategy="microbatch", event_time="day", batch_size="day",
          begin="2026-02-15", lookback=var("lookback"), partition_by=["day"]) }}
SELECT account, sum(seconds) AS seconds, count(*) AS plays, to_date(started_at) AS day
FROM {{ source("db", "events") }}
GROUP BY account, to_date(started_at)
