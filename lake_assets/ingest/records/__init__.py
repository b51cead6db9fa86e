"""Records of a batch: their source table, their schemas, the plan that types them, and rejected records."""
