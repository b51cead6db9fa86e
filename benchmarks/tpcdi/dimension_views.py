"""Dimensions: reference tables, and companies, securities, customers, accounts and trades with their history."""

from __future__ import annotations

VIEWS = {
    "dw.dim_date": """
SELECT sk_dateid AS date_key, datevalue AS day, calendaryearid AS year, calendarqtrid AS quarter,
  calendarmonthid AS month, date_trunc('MONTH', datevalue) AS month_start, dayofweekdesc AS weekday,
  dayofweeknum IN (1, 7) AS is_weekend
FROM src.date
""",
    "dw.dim_time": """
SELECT sk_timeid AS time_key, timevalue AS time, hourid AS hour, minuteid AS minute, markethoursflag AS is_market_open
FROM src.time
""",
    "dw.dim_broker": """
SELECT md5(CAST(employeeid AS STRING)) AS broker_key, employeeid AS broker_id, managerid AS manager_id,
  employeefirstname AS first_name, employeelastname AS last_name, employeemi AS middle_initial,
  employeebranch AS branch, employeeoffice AS office, employeephone AS phone
FROM src.hr
WHERE employeejobcode = 314
""",
    "dw.dim_company": """
SELECT md5(concat_ws('|', c.cik, c.pts)) AS company_key, c.cik AS company_id, s.st_name AS status, c.company_name,
  i.in_name AS industry, i.in_sc_id AS sector,
  CASE WHEN c.sp_rating IN ('AAA', 'AA', 'A', 'BBB', 'BB', 'B', 'CCC') THEN c.sp_rating END AS sp_rating,
  c.sp_rating IN ('BB', 'B', 'CCC') AS is_low_grade,
  c.ceo, c.address_line1, c.postal_code, c.city, c.state_prov, c.country, c.description, c.founding_date,
  c.pts AS effective_at,
  coalesce(lead(c.pts) OVER (PARTITION BY c.cik ORDER BY c.pts), TIMESTAMP '9999-12-31 00:00:00') AS end_at,
  lead(c.pts) OVER (PARTITION BY c.cik ORDER BY c.pts) IS NULL AS is_current
FROM staging.companies c
JOIN src.statustype s ON c.status = s.st_id
JOIN src.industry i ON c.industry_id = i.in_id
""",
    "dw.company_names": """
SELECT company_key, company_id, company_name AS company, effective_at, end_at FROM dw.dim_company
UNION ALL
SELECT company_key, company_id, lpad(company_id, 10, '0'), effective_at, end_at FROM dw.dim_company
""",
    "dw.dim_security": """
WITH versions AS (
  SELECT *, coalesce(lead(pts) OVER (PARTITION BY symbol ORDER BY pts), TIMESTAMP '9999-12-31 00:00:00') AS end_at
  FROM staging.securities
)
SELECT md5(concat_ws('|', v.symbol, greatest(v.pts, c.effective_at))) AS security_key, v.symbol, v.issue_type AS issue,
  v.status, v.name, v.exchange_id, c.company_key, c.company_id, v.shares_outstanding, v.first_trade,
  v.first_trade_on_exchange, v.dividend,
  greatest(v.pts, c.effective_at) AS effective_at, least(v.end_at, c.end_at) AS end_at,
  least(v.end_at, c.end_at) = TIMESTAMP '9999-12-31 00:00:00' AS is_current
FROM versions v
JOIN dw.company_names c ON v.company = c.company AND v.pts < c.end_at AND v.end_at > c.effective_at
""",
    "dw.financial": """
SELECT c.company_key, c.company_id, f.year, f.quarter, f.quarter_start, f.revenue, f.earnings, f.eps, f.diluted_eps,
  f.margin, f.inventory, f.assets, f.liabilities, f.shares_outstanding, f.diluted_shares
FROM staging.financials f
JOIN dw.company_names c ON f.company = c.company AND f.pts >= c.effective_at AND f.pts < c.end_at
""",
    "dw.company_eps": """
SELECT company_id, year, quarter, quarter_start,
  lead(quarter_start) OVER (PARTITION BY company_id ORDER BY quarter_start) AS next_quarter_start,
  sum(eps) OVER (PARTITION BY company_id ORDER BY quarter_start ROWS BETWEEN 4 PRECEDING AND 1 PRECEDING) AS eps_of_year
FROM dw.financial
""",
    "dw.customer_versions": """
SELECT customer_id, status,
  last_value(tax_id, true) OVER w AS tax_id, last_value(last_name, true) OVER w AS last_name,
  last_value(first_name, true) OVER w AS first_name, last_value(gender, true) OVER w AS gender,
  last_value(tier, true) OVER w AS tier, last_value(dob, true) OVER w AS dob,
  last_value(address_line1, true) OVER w AS address_line1, last_value(address_line2, true) OVER w AS address_line2,
  last_value(postal_code, true) OVER w AS postal_code, last_value(city, true) OVER w AS city,
  last_value(state_prov, true) OVER w AS state_prov, last_value(phone, true) OVER w AS phone,
  last_value(email, true) OVER w AS email, last_value(local_tax_id, true) OVER w AS local_tax_id,
  last_value(national_tax_id, true) OVER w AS national_tax_id, batch_id, changed_at AS effective_at,
  coalesce(lead(changed_at) OVER (PARTITION BY customer_id ORDER BY changed_at),
    TIMESTAMP '9999-12-31 00:00:00') AS end_at,
  row_number() OVER (PARTITION BY customer_id ORDER BY changed_at DESC) = 1 AS is_current
FROM staging.customer_changes
WINDOW w AS (PARTITION BY customer_id ORDER BY changed_at)
""",
    "dw.dim_customer": """
SELECT md5(concat_ws('|', v.customer_id, v.effective_at)) AS customer_key, v.customer_id, v.tax_id, s.st_name AS status,
  v.last_name, v.first_name, CASE WHEN v.gender IN ('M', 'F') THEN v.gender ELSE 'U' END AS gender, v.tier, v.dob,
  v.address_line1, v.address_line2, v.postal_code, v.city, v.state_prov, v.phone, v.email,
  n.tx_name AS national_tax, n.tx_rate AS national_tax_rate, l.tx_name AS local_tax, l.tx_rate AS local_tax_rate,
  p.agency_id, p.credit_rating, p.net_worth, p.marketing_nameplate,
  v.batch_id, v.effective_at, v.end_at, v.is_current
FROM dw.customer_versions v
JOIN src.statustype s ON v.status = s.st_id
LEFT JOIN (SELECT tx_id, min(tx_name) AS tx_name, min(tx_rate) AS tx_rate FROM src.taxrate GROUP BY tx_id) n
  ON v.national_tax_id = n.tx_id
LEFT JOIN (SELECT tx_id, min(tx_name) AS tx_name, min(tx_rate) AS tx_rate FROM src.taxrate GROUP BY tx_id) l
  ON v.local_tax_id = l.tx_id
LEFT JOIN staging.prospects p
  ON upper(v.last_name) = upper(p.last_name) AND upper(v.first_name) = upper(p.first_name)
  AND upper(v.address_line1) = upper(p.address_line1)
  AND coalesce(upper(v.address_line2), '') = coalesce(upper(p.address_line2), '')
  AND upper(v.postal_code) = upper(p.postal_code) AND v.is_current
""",
    "dw.current_customers": """
SELECT customer_key, customer_id, first_name, last_name, tier, status, city, state_prov, postal_code,
  address_line1, address_line2, floor(months_between(DATE '2017-07-09', dob) / 12) AS age, net_worth,
  marketing_nameplate
FROM dw.dim_customer
WHERE is_current
""",
    "dw.account_versions": """
SELECT account_id, customer_id, status, last_value(broker_id, true) OVER w AS broker_id,
  last_value(description, true) OVER w AS description, last_value(tax_status, true) OVER w AS tax_status, batch_id,
  changed_at AS effective_at,
  coalesce(lead(changed_at) OVER (PARTITION BY account_id ORDER BY changed_at),
    TIMESTAMP '9999-12-31 00:00:00') AS end_at
FROM staging.account_changes
WINDOW w AS (PARTITION BY account_id ORDER BY changed_at)
""",
    "dw.dim_account": """
SELECT md5(concat_ws('|', a.account_id, greatest(a.effective_at, c.effective_at))) AS account_key, a.account_id,
  c.customer_key, a.customer_id, b.broker_key, a.broker_id, s.st_name AS status, a.description, a.tax_status,
  greatest(a.effective_at, c.effective_at) AS effective_at, least(a.end_at, c.end_at) AS end_at,
  least(a.end_at, c.end_at) = TIMESTAMP '9999-12-31 00:00:00' AS is_current
FROM dw.account_versions a
JOIN dw.dim_customer c
  ON a.customer_id = c.customer_id AND a.effective_at < c.end_at AND a.end_at > c.effective_at
JOIN src.statustype s ON a.status = s.st_id
LEFT JOIN dw.dim_broker b ON a.broker_id = b.broker_id
""",
    "dw.current_accounts": """
SELECT account_id, account_key, customer_id, customer_key, broker_id, broker_key, status, tax_status
FROM dw.dim_account
WHERE is_current
""",
    "dw.trades": """
WITH ranked AS (
  SELECT *,
    min(event_at) OVER (PARTITION BY trade_id) AS created_at,
    max(CASE WHEN status_id IN ('CMPT', 'CNCL') THEN event_at END) OVER (PARTITION BY trade_id) AS closed_at,
    min(batch_id) OVER (PARTITION BY trade_id) AS first_batch_id,
    row_number() OVER (PARTITION BY trade_id ORDER BY event_at DESC) AS recency
  FROM staging.trade_events
)
SELECT trade_id, created_at, closed_at, status_id, type_id, is_cash, symbol, quantity, bid_price, account_id,
  executed_by, trade_price, fee, commission, tax, first_batch_id AS batch_id
FROM ranked
WHERE recency = 1
""",
    "dw.dim_trade": """
SELECT t.trade_id, a.broker_key, CAST(date_format(t.created_at, 'yyyyMMdd') AS INT) AS created_date_key,
  ct.time_key AS created_time_key, cd.date_key AS closed_date_key, t.created_at, t.closed_at, st.st_name AS status,
  tt.tt_name AS type, t.is_cash, s.security_key, s.company_key, s.company_id, t.symbol, t.quantity, t.bid_price,
  a.customer_key, a.customer_id, a.account_key, a.account_id, t.executed_by, t.trade_price, t.fee, t.commission,
  t.tax, t.batch_id
FROM dw.trades t
JOIN src.statustype st ON t.status_id = st.st_id
JOIN src.tradetype tt ON t.type_id = tt.tt_id
JOIN dw.dim_account a
  ON t.account_id = a.account_id AND t.created_at >= a.effective_at AND t.created_at < a.end_at
JOIN dw.dim_security s ON t.symbol = s.symbol AND t.created_at >= s.effective_at AND t.created_at < s.end_at
JOIN dw.dim_time ct ON date_format(t.created_at, 'HH:mm:ss') = ct.time
LEFT JOIN dw.dim_date cd ON to_date(t.closed_at) = cd.day
""",
}
