"""The sources and views of `bench_tpcdi.py`: staged batches like those of TPC-DI, and a warehouse over them.

What belongs here: the generator of the sources, and the SQL of the views. What is measured is in `bench_tpcdi.py`.
"""
