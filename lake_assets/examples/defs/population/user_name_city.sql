-- Every user who has a name and a city.
SELECT n.user_id, n.name, c.city
FROM final.user_name_tbl n
JOIN final.user_city_tbl c ON n.user_id = c.user_id
