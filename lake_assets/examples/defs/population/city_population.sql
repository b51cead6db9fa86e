SELECT city, count(*) AS population
FROM agg.user_name_city_tbl
GROUP BY city
