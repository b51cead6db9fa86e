"""Reading a model's SQL: names, joins, subqueries and grouping, from the text to its operators."""
