"""Reference tables, Finwire, DailyMarket, and what accounts do: Trade, TradeHistory, cash, holdings and watches."""

from __future__ import annotations

from tpcdi.sizes import FIRST_DAY, LAST_DAY, SECONDS, Sizes, at, choice, day_of, money, pick, symbol

# Finwire begins here; TPC-DI's begins in 1967.
FIRST_QUARTER = "DATE '2000-01-01'"
QUARTERS = 70
NO_FLAG, INSERTED, UPDATED = "CAST(NULL AS STRING)", "'I'", "'U'"
OPEN = 200  # limit orders among the last 1/OPEN of batch 1's trades are still open


def references() -> dict[str, str]:
    """Return the SELECTs of the tables that only batch 1 brings."""
    codes = {
        "statustype": (
            "st_id", "st_name", "ACTV Active,CMPT Completed,CNCL Cancelled,PNDG Pending,SBMT Submitted,INAC Inactive",
        ),
        "tradetype": ("tt_id", "tt_name", "TMB Market Buy,TMS Market Sell,TSL Stop Loss,TLS Limit Sell,TLB Limit Buy"),
    }  # fmt: skip
    selects = {
        table: f"SELECT * FROM VALUES {', '.join(repr(tuple(row.split(' ', 1))) for row in rows.split(','))} "
        f"AS t({code}, {name})"
        for table, (code, name, rows) in codes.items()
    }
    day = "date_add(DATE '1950-01-01', CAST(id AS INT))"
    moment = "make_interval(0, 0, 0, 0, 0, 0, id)"
    return selects | {
        "industry": "SELECT lpad(conv(id, 10, 36), 2, '0') AS in_id, concat('industry ', id) AS in_name, "
        "concat('sector ', id % 12) AS in_sc_id FROM range(0, 102, 1, 1)",
        "taxrate": "SELECT concat(IF(id < 5, 'US', 'CA'), IF(id < 5, id + 1, id - 4)) AS tx_id, "
        f"concat('rate ', id) AS tx_name, {money(90, 0, 1, kind='DECIMAL(6,5)')} AS tx_rate FROM range(0, 320, 1, 1)",
        "date": f"SELECT CAST(date_format({day}, 'yyyyMMdd') AS INT) AS sk_dateid, {day} AS datevalue, "
        f"year({day}) AS calendaryearid, quarter({day}) AS calendarqtrid, month({day}) AS calendarmonthid, "
        f"dayofweek({day}) AS dayofweeknum, date_format({day}, 'EEEE') AS dayofweekdesc FROM range(0, 25933, 1, 1)",
        "time": f"SELECT CAST(id AS INT) AS sk_timeid, date_format(TIMESTAMP '2000-01-01 00:00:00' + {moment}, "
        "'HH:mm:ss') AS timevalue, CAST(id DIV 3600 AS INT) AS hourid, CAST(id DIV 60 % 60 AS INT) AS minuteid, "
        "id BETWEEN 34200 AND 57600 AS markethoursflag FROM range(0, 86400, 1, 1)",
    }


def _fields(*parts: tuple[str, int]) -> str:
    """Return SQL of a line of fields of fixed width."""
    padded = (f"rpad(coalesce(CAST({value} AS STRING), ''), {width}, ' ')" for value, width in parts)
    return f"concat({', '.join(padded)})"


def _company(of: str) -> str:
    """Return SQL of the name or, as often, the number by which Finwire refers to a company."""
    return f"IF({pick(100, 2)} = 0, concat('Company ', {of}), lpad({of}, 10, '0'))"


def finwire(sizes: Sizes) -> str:
    """Return the SELECT of Finwire's lines: three versions of a company, two of a security, financials by quarter."""
    quarter = f"add_months({FIRST_QUARTER}, CAST(3 * q AS INT))"
    posted = f"concat(date_format(day, 'yyyyMMdd'), '-', lpad({pick(102, 86400)} % 240000, 6, '0'))"
    companies = _fields(
        (posted, 15), ("'CMP'", 3), ("concat('Company ', c)", 60), ("lpad(c, 10, '0')", 10),
        ("IF(version = 2 AND c % 11 = 0, 'INAC', 'ACTV')", 4),
        (f"lpad(conv({pick(103, 102, 'c')}, 10, 36), 2, '0')", 2),
        (choice(104, "AAA", "AA", "A", "BBB", "BB", "B", "CCC", "??"), 4),
        ("date_format(date_add(DATE '1950-01-01', CAST(c % 18000 AS INT)), 'yyyyMMdd')", 8),
        (f"concat({pick(105, 900)}, ' Wall Street')", 80), ("''", 80),
        (f"lpad({pick(106, 99999)}, 5, '0')", 12), (choice(107, "New York", "Boston", "Chicago"), 25),
        (choice(108, "NY", "MA", "IL"), 20), ("'USA'", 24), (f"concat('CEO ', {pick(109, 5000)})", 46),
        ("concat('makes things, version ', version)", 150),
    )  # fmt: skip
    securities = _fields(
        (posted, 15), ("'SEC'", 3), (symbol("s"), 15), (choice(110, "COMMON", "PREF_A", "PREF_B", of="s"), 6),
        ("'ACTV'", 4), ("concat('Security ', s, ' v', version)", 70),
        (choice(111, "NYSE", "NASDAQ", "AMEX", "PCX", of="s"), 6),
        (f"1000000 + {pick(112, 90000000)}", 13), ("'19900101'", 8), ("'19950101'", 8), (money(113, 0, 9), 12),
        (_company(pick(101, sizes.companies, "s")), 60),
    )  # fmt: skip
    financials = _fields(
        (posted, 15), ("'FIN'", 3), ("year(day)", 4), ("quarter(day)", 1), ("date_format(day, 'yyyyMMdd')", 8),
        ("date_format(date_add(day, 30), 'yyyyMMdd')", 8), (money(114, 100000, 9000000), 17),
        (money(115, 1000, 900000), 17),
        (money(116, 0, 9), 12), (money(117, 0, 9), 12), (money(118, 0, 1), 12), (money(119, 1000, 900000), 17),
        (money(120, 100000, 9000000), 17), (money(121, 1000, 9000000), 17), (f"1000000 + {pick(122, 90000000)}", 13),
        (f"1000000 + {pick(123, 90000000)}", 13), (_company("c"), 60),
    )  # fmt: skip
    return f"""
    SELECT {companies} AS line FROM (SELECT *, date_add({quarter}, {pick(124, 80)}) AS day
      FROM (SELECT id, id DIV 3 AS c, id % 3 AS version, id DIV 3 % 4 + id % 3 * 25 AS q
        FROM range(0, {3 * sizes.companies}, 1, 1)))
    UNION ALL
    SELECT {securities} FROM (SELECT *, date_add({quarter}, 80) AS day
      FROM (SELECT id, id DIV 2 AS s, id % 2 AS version, 5 + id % 2 * 40 AS q
        FROM range(0, {2 * sizes.securities}, 1, 1)))
    UNION ALL
    SELECT {financials} FROM (SELECT *, date_add({quarter}, 0) AS day
      FROM (SELECT id, id DIV {QUARTERS - 6} AS c, 6 + id % {QUARTERS - 6} AS q
        FROM range(0, {(QUARTERS - 6) * sizes.companies}, 1, 2)))
    """


def daily_market(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of DailyMarket: all securities on each day of the batch."""
    days = sizes.market_days if batch == 1 else 1
    day = f"date_sub(DATE '{day_of(batch)}', CAST(id DIV {sizes.securities} AS INT))"
    both = "concat(s, day)"
    close = f"CAST(20 + {pick(130, 80, 's')} + {pick(131, 900, both)} / 100 AS DECIMAL(8,2))"
    return f"""
    SELECT {_flagged(batch)},
      day AS dm_date, {symbol("s")} AS dm_s_symb, close AS dm_close,
      CAST(close * (1 + {pick(132, 50, both)} / 1000) AS DECIMAL(8,2)) AS dm_high,
      CAST(close * (1 - {pick(133, 50, both)} / 1000) AS DECIMAL(8,2)) AS dm_low,
      CAST(1000 + {pick(134, 900000, both)} AS INT) AS dm_vol, {batch} AS batchid
    FROM (SELECT *, {close} AS close
      FROM (SELECT id, CAST(id % {sizes.securities} AS INT) AS s, {day} AS day
        FROM range(0, {days * sizes.securities}, 1, 2)))
    """


def trades(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of a batch's new trades, with the times of their states: input of the tables below.

    A trade's columns depend on its number only. Limit orders are pending at first; the batch leaves some open.
    """
    total, new = sizes.trades, sizes.daily_trades
    first, last = (0, total) if batch == 1 else (total + (batch - 2) * new, total + (batch - 1) * new)
    created = (
        at(f"id * {SECONDS / total} + {pick(140, 300)}", FIRST_DAY)
        if batch == 1
        else at(pick(140, 60_000), day_of(batch))
    )
    # 30 % each are market orders to buy and to sell.
    kind = choice(141, *("TMB", "TMS") * 6, "TSL", "TSL", *("TLS", "TLB") * 3)
    return f"""
    SELECT id, created, tt, tt NOT LIKE 'TM%' AS is_limit, {pick(142, 100)} < 90 AS is_cash, s, qty,
      bid, CAST(bid * (1 + ({pick(143, 40)} - 20) / 1000) AS DECIMAL(8,2)) AS price, a,
      tt NOT LIKE 'TM%' AND {pick(144, 10)} = 0 AS is_cancelled,
      created + make_interval(0, 0, 0, 0, 0, 1 + {pick(145, 5)}) AS submitted,
      created + make_interval(0, 0, 0, 0, 0, 10 + {pick(146, 200)}, {pick(147, 60)}) AS done,
      tt NOT LIKE 'TM%' AND id >= {total - total // OPEN} AS is_open
    FROM (SELECT id, {created} AS created, {kind} AS tt, {pick(148, sizes.securities)} AS s,
      10 + {pick(149, 990)} AS qty, {money(150, 20, 100, kind="DECIMAL(8,2)")} AS bid, {pick(151, sizes.accounts)} AS a
      FROM range({first}, {last}, 1, 2))
    """


def closed_later(batch: int, opened: int) -> str:
    """Return a condition for the limit orders of an earlier batch that close in a batch.

    Of batch 1, every second one closes in batch 2, the others in batch 3; orders of batch 2 close in batch 3.
    """
    return f"is_open AND id % 2 = {batch % 2}" if opened == 1 else "is_open"


def _trade(flag: str, dsn: str, moment: str, status: str, price: str, batch: int) -> str:
    return f"""{flag} AS cdc_flag, {dsn} AS cdc_dsn, id AS t_id, {moment} AS t_dts, {status} AS t_st_id, tt AS t_tt_id,
      CAST(is_cash AS INT) AS t_is_cash, {symbol("s")} AS t_s_symb, qty AS t_qty, bid AS t_bid_price, a AS t_ca_id,
      concat('trader ', id % 500) AS t_exec_name, {price} AS t_trade_price, {money(160, 0, 20)} AS t_chrg,
      IF({price} IS NULL, NULL, {money(161, 0, 90)}) AS t_comm,
      IF({price} IS NULL, NULL, {money(162, 0, 50)}) AS t_tax, {batch} AS batchid"""


DONE = "IF(is_cancelled, 'CNCL', 'CMPT')"


def trade(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of Trade: the last state in batch 1, later each change of state (`I`, then `U`)."""
    price = "IF(is_open OR is_cancelled, NULL, price)"
    if batch == 1:
        last, status = "IF(is_open, created, done)", f"IF(is_open, 'PNDG', {DONE})"
        return f"SELECT {_trade(NO_FLAG, 'CAST(NULL AS BIGINT)', last, status, price, 1)} FROM ({trades(sizes, 1)})"
    dsn = f"{batch} * 1000000000L + id * 4"
    new, no_price = trades(sizes, batch), "CAST(NULL AS DECIMAL(8,2))"
    status = "IF(is_limit, 'PNDG', 'SBMT')"
    added = f"SELECT {_trade(INSERTED, dsn, 'created', status, no_price, batch)} FROM ({new})"
    done = f"SELECT {_trade(UPDATED, f'{dsn} + 1', 'done', DONE, price, batch)} FROM ({new}) WHERE NOT is_limit"
    return " UNION ALL ".join([added, done, *(_closed(sizes, batch, b, dsn) for b in range(1, batch))])


def _closed(sizes: Sizes, batch: int, opened: int, dsn: str) -> str:
    """Return the SELECT of the orders that a batch closes and an earlier one opened."""
    moment = at(f"61000 + {pick(170, 20000)}", day_of(batch))
    price = "IF(is_cancelled, NULL, price)"
    row = _trade(UPDATED, f"{dsn} + 2", moment, DONE, price, batch)
    return f"SELECT {row} FROM ({trades(sizes, opened)}) WHERE {closed_later(batch, opened)}"


def trade_history(sizes: Sizes) -> str:
    """Return the SELECT of TradeHistory: every state of the trades of batch 1."""
    source = trades(sizes, 1)
    return f"""
    SELECT id AS th_t_id, created AS th_dts, IF(is_limit, 'PNDG', 'SBMT') AS th_st_id FROM ({source})
    UNION ALL SELECT id, submitted, 'SBMT' FROM ({source}) WHERE is_limit AND NOT is_open
    UNION ALL SELECT id, done, {DONE} FROM ({source}) WHERE NOT is_open
    """


def _completed(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of the trades that a batch completes, and when (`moment`)."""
    parts = [f"SELECT *, done AS moment FROM ({trades(sizes, batch)}) WHERE NOT is_open AND NOT is_cancelled"]
    if batch > 1:
        moment = at(f"61000 + {pick(170, 20000)}", day_of(batch))
        parts += [
            f"SELECT *, {moment} AS moment FROM ({trades(sizes, b)}) "
            f"WHERE NOT is_cancelled AND {closed_later(batch, b)}"
            for b in range(1, batch)
        ]
    return " UNION ALL ".join(parts)


def _flagged(batch: int) -> str:
    return f"{NO_FLAG if batch == 1 else INSERTED} AS cdc_flag, {batch} * 1000000000L + id AS cdc_dsn"


def cash_transactions(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of CashTransaction: what completed cash trades cost or bring."""
    return f"""
    SELECT {_flagged(batch)}, a AS ct_ca_id, moment + INTERVAL 5 MINUTES AS ct_dts,
      CAST(IF(tt IN ('TMB', 'TLB'), -1, 1) * qty * price AS DECIMAL(10,2)) AS ct_amt,
      concat(tt, ' trade ', id) AS ct_name, {batch} AS batchid
    FROM ({_completed(sizes, batch)}) WHERE is_cash
    """


def holding_history(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of HoldingHistory: one row per completed trade, sales refer to an earlier trade."""
    is_buy = "tt IN ('TMB', 'TLB')"
    return f"""
    SELECT {_flagged(batch)}, IF({is_buy}, id, greatest(0, id - {pick(180, 1000)})) AS hh_h_t_id, id AS hh_t_id,
      IF({is_buy}, 0, qty) AS hh_before_qty, IF({is_buy}, qty, {pick(181, 2)} * (qty DIV 2)) AS hh_after_qty,
      {batch} AS batchid
    FROM ({_completed(sizes, batch)})
    """


def watch_history(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of WatchHistory: watches placed, and 30 % of them cancelled within 200 days."""
    total, new = sizes.watches, sizes.daily_watches
    cancelled = f"{pick(190, 10)} < 3"
    who = f"{pick(191, sizes.customers)} AS w_c_id, {symbol(pick(192, sizes.securities))} AS w_s_symb"
    placed = at(f"id * {SECONDS / total} + {pick(193, 300)}", FIRST_DAY)
    if batch == 1:
        moment = f"{placed} + make_interval(0, 0, 0, 1 + {pick(194, 200)})"
        return f"""
        SELECT {_flagged(1)}, {who}, {placed} AS w_dts, 'ACTV' AS w_action, 1 AS batchid FROM range(0, {total}, 1, 2)
        UNION ALL SELECT {_flagged(1)}, {who}, {moment}, 'CNCL', 1 FROM range(0, {total}, 1, 2)
        WHERE {cancelled} AND {moment} < TIMESTAMP '{LAST_DAY} 00:00:00'
        """
    first, moment = total + (batch - 2) * new, at(pick(195, 80_000), day_of(batch))
    return f"""
    SELECT {_flagged(batch)}, {who}, {moment} AS w_dts, 'ACTV' AS w_action, {batch} AS batchid
    FROM range({first}, {first + new}, 1, 1)
    UNION ALL SELECT {_flagged(batch)}, {who}, {moment}, 'CNCL', {batch} FROM range({total - 40 * new}, {total}, 1, 1)
    WHERE NOT {cancelled} AND id % 60 = {batch}
    """
