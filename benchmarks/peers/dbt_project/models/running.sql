{{ config(materialized="incremental", incremental_strategy="insert_overwrite", partition_by=["day"]) }}
SELECT account, seconds, day
FROM (
  SELECT account, sum(seconds) OVER (PARTITION BY account ORDER BY day) AS seconds, day FROM {{ ref("daily").render() }}
)
{% if is_incremental() %}
WHERE day >= DATE '{{ var("first") }}'
{% endif %}
