"""Views over the staged files: fields of Finwire's lines, and one stream of changes per entity over all batches."""

from __future__ import annotations

VIEWS = {
    "staging.companies": """
SELECT
  to_timestamp(substr(line, 1, 8), 'yyyyMMdd')
    + make_interval(0, 0, 0, 0, 0, 0, CAST(substr(line, 10, 6) AS INT)) AS pts,
  trim(substr(line, 19, 60)) AS company_name,
  CAST(substr(line, 79, 10) AS BIGINT) AS cik,
  trim(substr(line, 89, 4)) AS status,
  trim(substr(line, 93, 2)) AS industry_id,
  trim(substr(line, 95, 4)) AS sp_rating,
  to_date(substr(line, 99, 8), 'yyyyMMdd') AS founding_date,
  trim(substr(line, 107, 80)) AS address_line1,
  trim(substr(line, 187, 80)) AS address_line2,
  trim(substr(line, 267, 12)) AS postal_code,
  trim(substr(line, 279, 25)) AS city,
  trim(substr(line, 304, 20)) AS state_prov,
  trim(substr(line, 324, 24)) AS country,
  trim(substr(line, 348, 46)) AS ceo,
  trim(substr(line, 394, 150)) AS description
FROM src.finwire
WHERE substr(line, 16, 3) = 'CMP'
""",
    "staging.securities": """
SELECT
  to_timestamp(substr(line, 1, 8), 'yyyyMMdd')
    + make_interval(0, 0, 0, 0, 0, 0, CAST(substr(line, 10, 6) AS INT)) AS pts,
  trim(substr(line, 19, 15)) AS symbol,
  trim(substr(line, 34, 6)) AS issue_type,
  trim(substr(line, 40, 4)) AS status,
  trim(substr(line, 44, 70)) AS name,
  trim(substr(line, 114, 6)) AS exchange_id,
  CAST(trim(substr(line, 120, 13)) AS BIGINT) AS shares_outstanding,
  to_date(substr(line, 133, 8), 'yyyyMMdd') AS first_trade,
  to_date(substr(line, 141, 8), 'yyyyMMdd') AS first_trade_on_exchange,
  CAST(trim(substr(line, 149, 12)) AS DECIMAL(10,2)) AS dividend,
  trim(substr(line, 161, 60)) AS company
FROM src.finwire
WHERE substr(line, 16, 3) = 'SEC'
""",
    "staging.financials": """
SELECT
  to_timestamp(substr(line, 1, 8), 'yyyyMMdd')
    + make_interval(0, 0, 0, 0, 0, 0, CAST(substr(line, 10, 6) AS INT)) AS pts,
  CAST(substr(line, 19, 4) AS INT) AS year,
  CAST(substr(line, 23, 1) AS INT) AS quarter,
  to_date(substr(line, 24, 8), 'yyyyMMdd') AS quarter_start,
  to_date(substr(line, 32, 8), 'yyyyMMdd') AS posting_date,
  CAST(trim(substr(line, 40, 17)) AS DECIMAL(15,2)) AS revenue,
  CAST(trim(substr(line, 57, 17)) AS DECIMAL(15,2)) AS earnings,
  CAST(trim(substr(line, 74, 12)) AS DECIMAL(10,2)) AS eps,
  CAST(trim(substr(line, 86, 12)) AS DECIMAL(10,2)) AS diluted_eps,
  CAST(trim(substr(line, 98, 12)) AS DECIMAL(10,2)) AS margin,
  CAST(trim(substr(line, 110, 17)) AS DECIMAL(15,2)) AS inventory,
  CAST(trim(substr(line, 127, 17)) AS DECIMAL(15,2)) AS assets,
  CAST(trim(substr(line, 144, 17)) AS DECIMAL(15,2)) AS liabilities,
  CAST(trim(substr(line, 161, 13)) AS BIGINT) AS shares_outstanding,
  CAST(trim(substr(line, 174, 13)) AS BIGINT) AS diluted_shares,
  trim(substr(line, 187, 60)) AS company
FROM src.finwire
WHERE substr(line, 16, 3) = 'FIN'
""",
    "staging.customer_changes": """
SELECT c_id AS customer_id, actionts AS changed_at,
  CASE actiontype WHEN 'INACT' THEN 'INAC' ELSE 'ACTV' END AS status,
  c_tax_id AS tax_id, c_l_name AS last_name, c_f_name AS first_name, upper(c_gndr) AS gender, c_tier AS tier,
  c_dob AS dob, c_adline1 AS address_line1, c_adline2 AS address_line2, c_zipcode AS postal_code, c_city AS city,
  c_state_prov AS state_prov, c_phone AS phone, c_prim_email AS email, c_lcl_tx_id AS local_tax_id,
  c_nat_tx_id AS national_tax_id, 1 AS batch_id
FROM src.customermgmt
WHERE actiontype IN ('NEW', 'UPDCUST', 'INACT')
UNION ALL
SELECT c.c_id, CAST(b.batchdate AS TIMESTAMP), c.c_st_id,
  c.c_tax_id, c.c_l_name, c.c_f_name, upper(c.c_gndr), c.c_tier,
  c.c_dob, c.c_adline1, c.c_adline2, c.c_zipcode, c.c_city,
  c.c_state_prov, c.c_phone, c.c_prim_email, c.c_lcl_tx_id,
  c.c_nat_tx_id, c.batchid
FROM src.customer c
JOIN src.batchdate b ON c.batchid = b.batchid
""",
    "staging.account_changes": """
SELECT ca_id AS account_id, c_id AS customer_id, actionts AS changed_at,
  IF(actiontype = 'CLOSEACCT', 'INAC', 'ACTV') AS status,
  ca_b_id AS broker_id, ca_name AS description, ca_tax_st AS tax_status, 1 AS batch_id
FROM src.customermgmt
WHERE actiontype IN ('NEW', 'ADDACCT', 'UPDACCT', 'CLOSEACCT')
UNION ALL
SELECT a.ca_id, a.ca_c_id, CAST(b.batchdate AS TIMESTAMP), a.ca_st_id, a.ca_b_id, a.ca_name, a.ca_tax_st, a.batchid
FROM src.account a
JOIN src.batchdate b ON a.batchid = b.batchid
""",
    "staging.trade_events": """
SELECT t.t_id AS trade_id, h.th_dts AS event_at, h.th_st_id AS status_id, t.t_tt_id AS type_id,
  t.t_is_cash = 1 AS is_cash, t.t_s_symb AS symbol, t.t_qty AS quantity, t.t_bid_price AS bid_price,
  t.t_ca_id AS account_id, t.t_exec_name AS executed_by, t.t_trade_price AS trade_price, t.t_chrg AS fee,
  t.t_comm AS commission, t.t_tax AS tax, t.batchid AS batch_id
FROM src.trade t
JOIN src.tradehistory h ON t.t_id = h.th_t_id
WHERE t.batchid = 1
UNION ALL
SELECT t_id, t_dts, t_st_id, t_tt_id, t_is_cash = 1, t_s_symb, t_qty, t_bid_price, t_ca_id, t_exec_name,
  t_trade_price, t_chrg, t_comm, t_tax, batchid
FROM src.trade
WHERE batchid > 1
""",
    "staging.market_days": """
SELECT dm_s_symb AS symbol, dm_date AS day, dm_close AS close, dm_high AS high, dm_low AS low, dm_vol AS volume,
  batchid AS batch_id
FROM src.dailymarket
WHERE dm_close > 0
""",
    "staging.cash_days": """
SELECT ct_ca_id AS account_id, to_date(ct_dts) AS day, sum(ct_amt) AS amount, count(*) AS transactions
FROM src.cashtransaction
GROUP BY ct_ca_id, to_date(ct_dts)
""",
    "staging.watches": """
SELECT w_c_id AS customer_id, w_s_symb AS symbol,
  min(CASE WHEN w_action = 'ACTV' THEN w_dts END) AS placed_at,
  max(CASE WHEN w_action = 'CNCL' THEN w_dts END) AS removed_at,
  min(batchid) AS batch_id
FROM src.watchhistory
GROUP BY w_c_id, w_s_symb
""",
    "staging.prospects": """
SELECT agencyid AS agency_id, lastname AS last_name, firstname AS first_name, middleinitial AS middle_initial,
  CASE WHEN gender IN ('F', 'M') THEN gender ELSE 'U' END AS gender,
  addressline1 AS address_line1, addressline2 AS address_line2, postalcode AS postal_code, city, state, country, phone,
  income, numbercars AS cars, numberchildren AS children, maritalstatus AS marital_status, age,
  creditrating AS credit_rating, ownorrentflag AS own_or_rent, employer, numbercreditcards AS credit_cards,
  networth AS net_worth,
  nullif(concat_ws('+',
    IF(networth > 1000000 OR income > 200000, 'HighValue', NULL),
    IF(numberchildren > 3 OR numbercreditcards > 5, 'Expenses', NULL),
    IF(age > 45, 'Boomer', NULL),
    IF(income < 50000 OR creditrating < 600 OR networth < 100000, 'MoneyAlert', NULL),
    IF(numbercars > 3 OR numbercreditcards > 7, 'Spender', NULL),
    IF(age < 25 AND networth > 1000000, 'Inherited', NULL)), '') AS marketing_nameplate
FROM src.prospect
""",
}
