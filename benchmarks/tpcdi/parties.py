"""Customers, accounts, employees and prospects: CustomerMgmt, Customer, Account, HR, Prospect."""

from __future__ import annotations

from datetime import date

from tpcdi.sizes import SECONDS, Sizes, at, choice, day_of, pick

CUSTOMERS_SINCE = date(2007, 7, 7)
LAST = ("Miller", "Garcia", "Novak", "Okafor", "Larsen", "Tanaka", "Moreau", "Rossi", "Kowalski", "Haddad", "Silva")
FIRST = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Ines", "Jon", "Kira", "Leo", "Mia")
CITIES = ("Springfield", "Riverton", "Lakeside", "Fairview", "Georgetown", "Ashland", "Burlington", "Clayton")
STATES = ("CA", "NY", "TX", "WA", "IL", "MA", "FL", "ON", "BC", "QC")
STREETS = ("Oak Street", "Main Street", "Hill Road", "Park Avenue", "Mill Lane")


def _person(of: str) -> str:
    """Return SQL of the columns by which a customer and a prospect are found to be one person."""
    return (
        f"concat({choice(1, *LAST, of=of)}, '-', {of} % 997) AS c_l_name, {choice(2, *FIRST, of=of)} AS c_f_name, "
        f"concat({pick(3, 900, of)} + 1, ' ', {choice(4, *STREETS, of=of)}) AS c_adline1, "
        f"CAST(NULL AS STRING) AS c_adline2, lpad({pick(5, 99999, of)}, 5, '0') AS c_zipcode"
    )


def _details(of: str, version: str) -> str:
    """Return SQL of the columns of a customer that updates change."""
    mix = f"{of} * 31 + {version}"
    return (
        f"CAST({pick(6, 3, mix)} + 1 AS TINYINT) AS c_tier, {choice(7, *CITIES, of=mix)} AS c_city, "
        f"{choice(8, *STATES, of=mix)} AS c_state_prov, "
        f"concat('+1 (', {pick(9, 800, mix)} + 100, ') ', {pick(10, 9000000, mix)} + 1000000) AS c_phone, "
        f"concat('c', {of}, '.', {version}, '@example.com') AS c_prim_email"
    )


def _fixed(of: str) -> str:
    """Return SQL of the columns of a customer that never change."""
    return (
        f"lpad({pick(11, 999999999, of)}, 9, '0') AS c_tax_id, {choice(12, 'F', 'M', 'f', 'm', 'x', of=of)} AS c_gndr, "
        f"date_add(DATE '1940-01-01', {pick(13, 22000, of)}) AS c_dob, "
        f"concat('US', {pick(14, 5, of)} + 1) AS c_nat_tx_id, concat('CA', {pick(15, 6, of)} + 1) AS c_lcl_tx_id"
    )


CUSTOMER_COLUMNS = (
    "c_id", "c_tax_id", "c_l_name", "c_f_name", "c_gndr", "c_tier", "c_dob", "c_adline1", "c_adline2", "c_zipcode",
    "c_city", "c_state_prov", "c_phone", "c_prim_email", "c_lcl_tx_id", "c_nat_tx_id",
)  # fmt: skip
ACCOUNT_COLUMNS = ("ca_id", "ca_b_id", "ca_name", "ca_tax_st")


def _account(of: str, version: str, sizes: Sizes) -> str:
    mix = f"{of} * 37 + {version}"
    return (
        f"{pick(16, sizes.employees, mix)} AS ca_b_id, concat('account ', {of}, ' v', {version}) AS ca_name, "
        f"CAST({pick(17, 3, of)} AS TINYINT) AS ca_tax_st"
    )


def _columns(names: tuple[str, ...], *, but: tuple[str, ...] = ()) -> str:
    return ", ".join(n if n not in but else f"NULL AS {n}" for n in names)


def customer_management(sizes: Sizes) -> str:
    """Return the SELECT of CustomerMgmt, flat: one row per action, with NULL for what the action leaves out."""
    people, accounts = sizes.customers, sizes.accounts
    since = at(f"id % {people} * {1700 * 86400 // people} + {pick(20, 3600)}", CUSTOMERS_SINCE)
    none = tuple(c for c in CUSTOMER_COLUMNS if c != "c_id")
    keep = tuple(c for c in none if c not in ("c_city", "c_state_prov", "c_phone", "c_prim_email", "c_tier"))
    updates, customer, account = people * 2 // 5, pick(22, people), pick(23, accounts)
    seconds = SECONDS // (updates + 1)
    later, ended = (at(f"(id - {first}) * {seconds} + {pick(21, 3600)}") for first in (0, updates))
    return f"""
    SELECT 'NEW' AS actiontype, {since} AS actionts, CAST(id AS INT) AS c_id, {_columns(none)},
      CAST(id AS INT) AS ca_id, {_columns(ACCOUNT_COLUMNS[1:])}
    FROM (SELECT id, {_fixed("id")}, {_person("id")}, {_details("id", "0")}, {_account("id", "0", sizes)}
      FROM range(0, {people}, 1, 2))
    UNION ALL
    SELECT 'ADDACCT', {since} + INTERVAL 30 DAYS, CAST(id - {people} AS INT), {_columns(none, but=none)},
      CAST(id AS INT), {_columns(ACCOUNT_COLUMNS[1:])}
    FROM (SELECT id, {_account("id", "0", sizes)} FROM range({people}, {accounts}, 1, 2))
    UNION ALL
    SELECT 'UPDCUST', {later}, {customer}, {_columns(none, but=keep)}, NULL,
      {_columns(ACCOUNT_COLUMNS[1:], but=ACCOUNT_COLUMNS)}
    FROM (SELECT id, {_details(customer, "id")} FROM range(0, {updates}, 1, 1))
    UNION ALL
    SELECT 'UPDACCT', {later} + INTERVAL 2 HOURS, {account} % {people}, {_columns(none, but=none)}, {account},
      {_columns(ACCOUNT_COLUMNS[1:], but=("ca_tax_st",))}
    FROM (SELECT id, {_account(account, "id", sizes)} FROM range(0, {updates}, 1, 1))
    UNION ALL
    SELECT 'CLOSEACCT', {ended} + INTERVAL 400 DAYS, {account} % {people}, {_columns(none, but=none)}, {account},
      {_columns(ACCOUNT_COLUMNS[1:], but=ACCOUNT_COLUMNS)}
    FROM range({updates}, {updates + people // 10}, 1, 1)
    UNION ALL
    SELECT 'INACT', {ended} + INTERVAL 500 DAYS, {customer}, {_columns(none, but=none)}, NULL,
      {_columns(ACCOUNT_COLUMNS[1:], but=ACCOUNT_COLUMNS)}
    FROM range({updates}, {updates + people // 20}, 1, 1)
    """


def _spread(batch: int, rows: int, most: int) -> str:
    """Return SQL of numbers below `most`, a different one for each of the ids from 0 to below `rows`."""
    return f"({7919 * batch} + id * {max(1, most // rows)}) % {most}"


def customers_of(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of the Customer extract of a batch: new customers, then updated ones, complete rows."""
    new, start = sizes.daily_customers, sizes.customers + (batch - 2) * sizes.daily_customers
    is_new = f"id < {new}"
    who = f"IF({is_new}, {start} + id, {_spread(batch, 2 * new, sizes.customers)})"
    return f"""
    SELECT IF({is_new}, 'I', 'U') AS cdc_flag, {batch} * 1000000000L + id AS cdc_dsn,
      {_columns(CUSTOMER_COLUMNS)}, IF({is_new} OR id % 9 > 0, 'ACTV', 'INAC') AS c_st_id, {batch} AS batchid
    FROM (SELECT id, CAST(c AS INT) AS c_id, {_fixed("c")}, {_person("c")}, {_details("c", str(batch * 100_000_000))}
      FROM (SELECT id, {who} AS c FROM range(0, {2 * new}, 1, 1)))
    """


def accounts_of(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of the Account extract of a batch: two of each new customer, then updated ones."""
    new = 2 * sizes.daily_customers
    start, person = sizes.accounts + (batch - 2) * new, sizes.customers + (batch - 2) * sizes.daily_customers
    is_new = f"id < {new}"
    who = f"IF({is_new}, {start} + id, {_spread(batch, 2 * new, sizes.accounts)})"
    return f"""
    SELECT IF({is_new}, 'I', 'U') AS cdc_flag, {batch} * 1000000000L + id AS cdc_dsn, ca_id, ca_b_id,
      CAST(IF({is_new}, {person} + id % {sizes.daily_customers}, a % {sizes.customers}) AS INT) AS ca_c_id,
      ca_name, ca_tax_st, IF({is_new} OR id % 7 > 0, 'ACTV', 'INAC') AS ca_st_id, {batch} AS batchid
    FROM (SELECT id, a, CAST(a AS INT) AS ca_id, {_account("a", str(batch * 100_000_000), sizes)}
      FROM (SELECT id, {who} AS a FROM range(0, {2 * new}, 1, 1)))
    """


def employees(sizes: Sizes) -> str:
    """Return the SELECT of HR."""
    return f"""
    SELECT CAST(id AS INT) AS employeeid, {pick(50, max(1, sizes.employees // 20))} AS managerid,
      {choice(51, *FIRST)} AS employeefirstname, concat({choice(52, *LAST)}, '-', id % 97) AS employeelastname,
      substr('ABCDEFGH', {pick(53, 8)} + 1, 1) AS employeemi,
      IF({pick(54, 3)} = 0, 314, 100 + {pick(55, 100)}) AS employeejobcode,
      concat('branch ', {pick(56, 40)}) AS employeebranch, concat('OFF', {pick(57, 900)}) AS employeeoffice,
      concat('+1 555 ', 1000000 + {pick(58, 9000000)}) AS employeephone
    FROM range(0, {sizes.employees}, 1, 1)
    """


def prospects(sizes: Sizes, batch: int) -> str:
    """Return the SELECT of the Prospect file of a batch: 3 % of the rows changed, 0.5 % new, 0.5 % gone.

    Every second prospect is a customer: name and address are the same.
    """
    shift = sizes.prospects // 200 * (batch - 1)
    version = " + ".join(
        ["0", *(f"IF({pick(60 + b, 1000)} < 30, {b}, 0)" for b in range(2, batch + 1))],
    )
    mix = "id * 41 + version"
    return f"""
    SELECT concat('AG', lpad(id, 9, '0')) AS agencyid, c_l_name AS lastname, c_f_name AS firstname,
      {choice(70, "A", "B", "C")} AS middleinitial, {choice(71, "F", "M", "U")} AS gender, c_adline1 AS addressline1,
      c_adline2 AS addressline2, c_zipcode AS postalcode, {choice(72, *CITIES)} AS city, {choice(73, *STATES)} AS state,
      'USA' AS country, concat('555-', {pick(74, 9000000)}) AS phone,
      20000 + {pick(75, 300000, mix)} AS income, {pick(76, 5, mix)} AS numbercars, {pick(77, 6)} AS numberchildren,
      {choice(78, "S", "M", "D", "W", "U")} AS maritalstatus, 18 + {pick(79, 70)} AS age,
      300 + {pick(80, 550, mix)} AS creditrating, {choice(81, "O", "R", "U")} AS ownorrentflag,
      concat('employer ', {pick(82, 500, mix)}) AS employer, {pick(83, 9, mix)} AS numbercreditcards,
      {pick(84, 2000000, mix)} - 100000 AS networth
    FROM (SELECT id, version, {_person("IF(id % 2 = 0, id, id + 500000000)")}
      FROM (SELECT id, {version} AS version FROM range({shift}, {sizes.prospects + shift}, 1, 2)))
    """


def market_day(batch: int) -> str:
    """Return SQL of the row of BatchDate."""
    return f"SELECT {batch} AS batchid, DATE '{day_of(batch)}' AS batchdate"
