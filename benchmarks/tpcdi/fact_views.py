"""Facts: cash balances, holdings, market history, watches, and prospects beside the customers they became."""

from __future__ import annotations

VIEWS = {
    "dw.fact_cash_balances": """
SELECT a.customer_key, a.account_key, c.account_id, d.date_key, c.day, c.amount,
  sum(c.amount) OVER (PARTITION BY c.account_id ORDER BY c.day) AS cash
FROM staging.cash_days c
JOIN dw.dim_date d ON c.day = d.day
JOIN dw.dim_account a
  ON c.account_id = a.account_id AND c.day >= to_date(a.effective_at) AND c.day < to_date(a.end_at)
""",
    "dw.fact_holdings": """
SELECT h.hh_h_t_id AS trade_id, h.hh_t_id AS current_trade_id, t.customer_key, t.account_key, t.account_id,
  t.security_key, t.symbol, t.company_key, t.closed_date_key AS date_key, t.closed_at, t.trade_price AS current_price,
  h.hh_before_qty AS quantity_before, h.hh_after_qty AS current_holding, h.batchid AS batch_id
FROM src.holdinghistory h
JOIN dw.dim_trade t ON h.hh_t_id = t.trade_id
""",
    "dw.market_year": """
SELECT symbol, day, close, high, low, volume, batch_id,
  max(high) OVER w AS high_of_year, min(low) OVER w AS low_of_year,
  avg(volume) OVER (PARTITION BY symbol ORDER BY day ROWS BETWEEN 29 PRECEDING AND CURRENT ROW) AS volume_30d
FROM staging.market_days
WINDOW w AS (PARTITION BY symbol ORDER BY day ROWS BETWEEN 364 PRECEDING AND CURRENT ROW)
""",
    "dw.fact_market_history": """
SELECT s.security_key, s.company_key, m.symbol, d.date_key, m.day, m.close, m.high, m.low, m.volume,
  m.high_of_year, m.low_of_year, CAST(m.close / e.eps_of_year AS DECIMAL(12,4)) AS pe_ratio,
  CAST(s.dividend / m.close * 100 AS DECIMAL(8,4)) AS yield, m.batch_id
FROM dw.market_year m
JOIN dw.dim_date d ON m.day = d.day
JOIN dw.dim_security s
  ON m.symbol = s.symbol AND CAST(m.day AS TIMESTAMP) >= s.effective_at AND CAST(m.day AS TIMESTAMP) < s.end_at
LEFT JOIN dw.company_eps e
  ON s.company_id = e.company_id AND m.day >= e.quarter_start
  AND m.day < coalesce(e.next_quarter_start, DATE '9999-12-31') AND e.eps_of_year <> 0
""",
    "dw.fact_watches": """
SELECT c.customer_key, w.customer_id, s.security_key, w.symbol, p.date_key AS placed_date_key,
  r.date_key AS removed_date_key, w.placed_at, w.removed_at, w.batch_id
FROM staging.watches w
JOIN dw.dim_customer c
  ON w.customer_id = c.customer_id AND w.placed_at >= c.effective_at AND w.placed_at < c.end_at
JOIN dw.dim_security s ON w.symbol = s.symbol AND w.placed_at >= s.effective_at AND w.placed_at < s.end_at
JOIN dw.dim_date p ON to_date(w.placed_at) = p.day
LEFT JOIN dw.dim_date r ON to_date(w.removed_at) = r.day
""",
    "dw.prospect": """
SELECT p.*, b.record_date_key,
  EXISTS (
    SELECT 1 FROM dw.current_customers c
    WHERE upper(c.last_name) = upper(p.last_name) AND upper(c.first_name) = upper(p.first_name)
      AND upper(c.address_line1) = upper(p.address_line1) AND upper(c.postal_code) = upper(p.postal_code)
      AND c.status = 'Active'
  ) AS is_customer
FROM staging.prospects p
CROSS JOIN (SELECT CAST(date_format(max(batchdate), 'yyyyMMdd') AS INT) AS record_date_key FROM src.batchdate) b
""",
}
