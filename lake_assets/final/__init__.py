"""Final tables: rows as they are now (SCD1), their history (SCD2) or their inserts, kept up to date from staging."""
