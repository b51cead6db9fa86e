"""One module per mode of a final table: how the changes of a window become its rows."""
