-- Every order has its place: this is computed in full.
SELECT id, row_number() OVER (ORDER BY created, id) AS place FROM final.orders
