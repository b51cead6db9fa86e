"""Reports, and audits of the load, over the dimensions and facts."""

from __future__ import annotations

VIEWS = {
    "agg.rows_loaded": """
SELECT 'DimCustomer' AS table_name, batch_id, count(*) AS row_count FROM dw.dim_customer GROUP BY batch_id
UNION ALL
SELECT 'DimTrade', batch_id, count(*) FROM dw.dim_trade GROUP BY batch_id
UNION ALL
SELECT 'FactHoldings', batch_id, count(*) FROM dw.fact_holdings GROUP BY batch_id
UNION ALL
SELECT 'FactMarketHistory', batch_id, count(*) FROM dw.fact_market_history GROUP BY batch_id
UNION ALL
SELECT 'FactWatches', batch_id, count(*) FROM dw.fact_watches GROUP BY batch_id
""",
    "agg.rows_staged": """
SELECT 'Trade' AS table_name, batchid AS batch_id, cdc_flag, count(*) AS row_count
FROM src.trade GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'CashTransaction', batchid, cdc_flag, count(*) FROM src.cashtransaction GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'HoldingHistory', batchid, cdc_flag, count(*) FROM src.holdinghistory GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'WatchHistory', batchid, cdc_flag, count(*) FROM src.watchhistory GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'DailyMarket', batchid, cdc_flag, count(*) FROM src.dailymarket GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'Customer', batchid, cdc_flag, count(*) FROM src.customer GROUP BY batchid, cdc_flag
UNION ALL
SELECT 'Account', batchid, cdc_flag, count(*) FROM src.account GROUP BY batchid, cdc_flag
""",
    "agg.alerts": """
SELECT 'DimTrade' AS table_name, 'Invalid trade commission' AS message, CAST(trade_id AS STRING) AS key, batch_id
FROM dw.dim_trade WHERE commission > trade_price * quantity / 100
UNION ALL
SELECT 'DimTrade', 'Invalid trade fee', CAST(trade_id AS STRING), batch_id
FROM dw.dim_trade WHERE fee > trade_price * quantity / 100
UNION ALL
SELECT 'DimCustomer', 'Invalid customer tier', CAST(customer_id AS STRING), batch_id
FROM dw.dim_customer WHERE tier NOT IN (1, 2, 3) OR tier IS NULL
UNION ALL
SELECT 'DimCustomer', 'DOB out of range', CAST(customer_id AS STRING), batch_id
FROM dw.dim_customer WHERE dob < DATE '1917-07-07' OR dob > DATE '1999-12-31'
UNION ALL
SELECT 'DimCompany', 'Invalid SPRating', CAST(company_id AS STRING), 1 FROM dw.dim_company WHERE sp_rating IS NULL
UNION ALL
SELECT 'FactMarketHistory', 'No earnings for company', symbol, batch_id
FROM dw.fact_market_history WHERE pe_ratio IS NULL
""",
    "agg.alert_counts": """
SELECT table_name, message, batch_id, count(*) AS alerts, count(DISTINCT key) AS keys
FROM agg.alerts
GROUP BY table_name, message, batch_id
""",
    "agg.trades_by_day": """
SELECT created_date_key, type, status, count(*) AS trades, sum(quantity) AS shares,
  sum(trade_price * quantity) AS volume, avg(trade_price) AS average_price
FROM dw.dim_trade
GROUP BY created_date_key, type, status
""",
    "agg.broker_commissions": """
SELECT b.broker_id, b.first_name, b.last_name, b.branch, d.year, d.quarter, count(*) AS trades,
  count(DISTINCT t.customer_id) AS customers, sum(t.commission) AS commission, sum(t.fee) AS fees
FROM dw.dim_trade t
JOIN dw.dim_broker b ON t.broker_key = b.broker_key
JOIN dw.dim_date d ON t.created_date_key = d.date_key
GROUP BY b.broker_id, b.first_name, b.last_name, b.branch, d.year, d.quarter
""",
    "agg.branch_ranking": """
SELECT branch, year, quarter, commission, rank() OVER (PARTITION BY year, quarter ORDER BY commission DESC) AS place
FROM (
  SELECT branch, year, quarter, sum(commission) AS commission FROM agg.broker_commissions GROUP BY branch, year, quarter
)
""",
    "agg.customer_trading": """
SELECT c.tier, c.state_prov, d.month_start, count(*) AS trades, count(DISTINCT t.account_id) AS accounts,
  sum(t.trade_price * t.quantity) AS volume
FROM dw.dim_trade t
JOIN dw.dim_customer c ON t.customer_key = c.customer_key
JOIN dw.dim_date d ON t.created_date_key = d.date_key
WHERE t.status = 'Completed'
GROUP BY c.tier, c.state_prov, d.month_start
""",
    "agg.customer_cash": """
SELECT a.customer_id, count(*) AS days, sum(c.amount) AS amount, max(c.day) AS last_day
FROM staging.cash_days c
JOIN dw.current_accounts a ON c.account_id = a.account_id
GROUP BY a.customer_id
""",
    "agg.latest_balances": """
SELECT account_id, day, cash
FROM (
  SELECT *, row_number() OVER (PARTITION BY account_id ORDER BY day DESC) AS recency FROM dw.fact_cash_balances
)
WHERE recency = 1
""",
    "agg.security_popularity": """
SELECT s.symbol, s.name, s.exchange_id, count(*) AS watches, count(DISTINCT w.customer_id) AS customers,
  count_if(w.removed_at IS NULL) AS active_watches
FROM dw.fact_watches w
JOIN dw.dim_security s ON w.symbol = s.symbol AND s.is_current
GROUP BY s.symbol, s.name, s.exchange_id
""",
    "agg.positions": """
SELECT account_id, symbol, sum(current_holding - quantity_before) AS quantity, count(*) AS changes,
  max(closed_at) AS last_change
FROM dw.fact_holdings
GROUP BY account_id, symbol
HAVING sum(current_holding - quantity_before) <> 0
""",
    "agg.position_values": """
SELECT p.account_id, sum(p.quantity * m.close) AS value, count(*) AS securities
FROM agg.positions p
JOIN (
  SELECT symbol, max_by(close, day) AS close FROM staging.market_days GROUP BY symbol
) m ON p.symbol = m.symbol
GROUP BY p.account_id
""",
    "agg.sector_days": """
SELECT c.sector, m.day, count(*) AS securities, sum(m.volume) AS volume, max(m.high) AS high, min(m.low) AS low,
  sum(m.close * m.volume) AS turnover
FROM dw.fact_market_history m
JOIN dw.dim_company c ON m.company_key = c.company_key
GROUP BY c.sector, m.day
""",
    "agg.sector_trend": """
SELECT sector, day, turnover, lag(turnover) OVER (PARTITION BY sector ORDER BY day) AS turnover_before,
  avg(turnover) OVER (PARTITION BY sector ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS turnover_7d
FROM agg.sector_days
""",
    "agg.year_highs": """
SELECT day, count(*) AS new_highs
FROM dw.fact_market_history
WHERE high = high_of_year
GROUP BY day
""",
    "agg.nameplates": """
SELECT tag, state, is_customer, count(*) AS prospects, avg(income) AS income, max(net_worth) AS net_worth
FROM dw.prospect
LATERAL VIEW explode(split(marketing_nameplate, '\\\\+')) t AS tag
GROUP BY tag, state, is_customer
""",
    "agg.top_securities": """
SELECT year, quarter, symbol, trades, volume
FROM (
  SELECT *, rank() OVER (PARTITION BY year, quarter ORDER BY volume DESC, symbol) AS place
  FROM (
    SELECT d.year, d.quarter, t.symbol, count(*) AS trades, sum(t.trade_price * t.quantity) AS volume
    FROM dw.dim_trade t JOIN dw.dim_date d ON t.created_date_key = d.date_key
    GROUP BY d.year, d.quarter, t.symbol
  )
)
WHERE place <= 10
""",
    "agg.idle_accounts": """
SELECT a.account_id, a.customer_id, c.last_name, c.tier
FROM dw.current_accounts a
JOIN dw.current_customers c ON a.customer_id = c.customer_id
WHERE a.status = 'Active'
  AND NOT EXISTS (
    SELECT 1 FROM dw.trades t WHERE t.account_id = a.account_id AND t.created_at >= TIMESTAMP '2017-01-01 00:00:00')
""",
    "agg.active_accounts": """
SELECT to_date(created_at) AS day, count(DISTINCT account_id) AS accounts, count(DISTINCT symbol) AS securities
FROM dw.trades
GROUP BY to_date(created_at)
""",
    "agg.large_cash_days": """
SELECT c.account_id, c.day, c.amount, s.average, s.deviation
FROM staging.cash_days c
JOIN (
  SELECT account_id, avg(amount) AS average, stddev(amount) AS deviation
  FROM staging.cash_days GROUP BY account_id HAVING count(*) > 5
) s ON c.account_id = s.account_id
WHERE abs(c.amount - s.average) > 2 * s.deviation
""",
    "agg.customer_overview": """
SELECT c.customer_id, c.first_name, c.last_name, c.tier, c.status, c.marketing_nameplate,
  coalesce(t.trades, 0) AS trades, t.last_trade, coalesce(k.amount, 0) AS cash, coalesce(w.watches, 0) AS watches
FROM dw.current_customers c
LEFT JOIN (
  SELECT customer_id, count(*) AS trades, max(created_at) AS last_trade FROM dw.dim_trade GROUP BY customer_id
) t ON c.customer_id = t.customer_id
LEFT JOIN agg.customer_cash k ON c.customer_id = k.customer_id
LEFT JOIN (SELECT customer_id, count(*) AS watches FROM dw.fact_watches GROUP BY customer_id) w
  ON c.customer_id = w.customer_id
""",
    "agg.overlapping_versions": """
SELECT a.account_id, a.account_key, b.account_key AS other_key
FROM dw.dim_account a
JOIN dw.dim_account b ON a.account_id = b.account_id AND a.effective_at < b.effective_at AND a.end_at > b.effective_at
""",
}
