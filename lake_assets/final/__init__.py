"""Final tables: current rows (SCD1), their history (SCD2) or their inserts, kept up to date from staging."""
