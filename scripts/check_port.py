"""Says before a server is started that its port is taken, and what to do: `check_port.py PORT WHAT-TO-DO`."""

import sys

from lake_assets.errors import ConfigError
from lake_assets.runtime.loopback_ports import check_free


def main() -> None:
    text, advice = sys.argv[1:]
    try:
        if not text.isdecimal():
            raise ConfigError(f"{text!r} is not a port: use a number from 1 to 65535, such as PORT=3001")
        check_free(int(text), advice)
    except ConfigError as e:
        sys.exit(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main()
