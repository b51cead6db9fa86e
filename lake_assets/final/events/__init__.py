"""From the events of a window to one change per key: columns, order, keys that change."""
